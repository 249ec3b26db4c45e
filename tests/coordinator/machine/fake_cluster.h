// A cluster of simulated members around one Machine (the coordinator's state machine) and a store
// in memory, in virtual time and one thread. The members follow the protocol; tests delay and kill
// them, and crash the machine.
#pragma once

#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/coordinator/machine/fake_members.h"
#include "tests/coordinator/machine/machine_driver.h"

namespace cadre::testing {

class FakeCluster final : public MachineDriver, public FakeMembers {
 public:
  explicit FakeCluster(const Adjust& adjust = nullptr)
      : MachineDriver(adjust), heartbeat_at_(now() + heartbeat()) {}

  // ---- Members
  FakeWorker& AddWorker(const std::string& name, const std::string& host = "host",
                        const std::string& device = "processor, 1 thread",
                        std::vector<v1::RunSpec::Precision> precisions = {});
  // Adds a rank of a program for a run.
  FakeWorker& AddRank(const std::string& program, const std::string& run, uint32_t ranks,
                      uint32_t rank);
  // Adds workers w<i>, numbered by all workers.
  void AddWorkers(int count);
  FakeAggregator& AddAggregator(const std::string& name);
  // Ends the process and its stream.
  template <typename Member>
  void Kill(Member& member);
  // Breaks the stream; the member reconnects at the next heartbeat.
  template <typename Member>
  void Cut(Member& member);
  void Connect(FakeWorker& worker);
  void Connect(FakeAggregator& aggregator);
  template <typename Member>
  void Reconnect(Member& member) {
    Cut(member);
    Connect(member);
  }
  // Starts a new process with the same name and, for an aggregator, the same disk.
  void Restart(FakeWorker& worker);
  void Restart(FakeAggregator& aggregator);
  // Ends the process, removes its data folder and starts it again.
  void Wipe(FakeAggregator& aggregator);

  // Sends one of the messages of v1::MemberMessage from a member, or on a connection.
  template <typename Member>
  void Send(const Member& member, const google::protobuf::Message& body) {
    SendFrom(member.connection, body);
  }
  void SendFrom(ConnectionId connection, const google::protobuf::Message& body);
  // The lead (rank 0) of a group reports step times; half of `step_seconds` is computation.
  void Measure(FakeWorker& lead, double step_seconds);
  // A lead contributes to the round after its version, although behaviour.train is off.
  void ContributeOnce(FakeWorker& lead);
  // The worker, which stays alive, reports that its group has failed.
  void Fail(const FakeWorker& worker, const std::string& reason = "a peer is lost",
            v1::FailureCause cause = v1::FAILURE_CAUSE_PEER,
            const std::vector<uint32_t>& suspects = {});
  v1::Hello WorkerHello(const FakeWorker& worker) const;

  // ---- Time
  // Advances the time through every deadline; members send heartbeats.
  void Run(absl::Duration duration);
  // Runs until the condition holds. Returns false if it did not hold within `limit`.
  bool RunUntil(const std::function<bool()>& condition, absl::Duration limit = absl::Minutes(10));
  bool RunUntilEnded(const std::string& run) {
    return RunUntil([&] { return Ended(run); });
  }

  void RestartCoordinator() override;

 private:
  void Deliver() override;
  void Post(ConnectionId connection, const google::protobuf::Message& body) override;
  void ReconnectAll();

  absl::Time heartbeat_at_;
};

template <typename Member>
void FakeCluster::Cut(Member& member) {
  const ConnectionId connection = std::exchange(member.connection, 0);
  Do(StreamClosed{connection});
  Deliver();
}

template <typename Member>
void FakeCluster::Kill(Member& member) {
  member.alive = false;
  DropPlace(member);
  Cut(member);
}

// A run of synthetic data that averages every `every_steps`, with a batch of 32 per group.
v1::RunSpec MakeSpec(uint32_t groups, uint32_t ranks, uint32_t every_steps, uint32_t steps);
// A run of programs with training loops of their own.
v1::RunSpec OpaqueSpec(uint32_t groups);

// One cluster whose groups train only on request.
class MachineTest : public ::testing::Test {
 protected:
  explicit MachineTest(const FakeCluster::Adjust& adjust = nullptr) : cluster_(adjust) {
    cluster_.behaviour.train = false;
  }
  // Adds aggregators agg-<i> and workers w<i>.
  void AddMembers(int aggregators, int workers) {
    for (int i = 0; i < aggregators; ++i) cluster_.AddAggregator("agg-" + std::to_string(i));
    cluster_.AddWorkers(workers);
  }
  // Adds the members, then submits the run; returns its id.
  std::string SubmitTo(int aggregators, int workers, const v1::RunSpec& spec) {
    AddMembers(aggregators, workers);
    return cluster_.Submit(spec);
  }
  // Two shards, and groups of one worker each that have started.
  std::string Begin(uint32_t groups, const v1::RunSpec& spec) {
    const std::string run = SubmitTo(2, groups, spec);
    for (uint32_t g = 0; g < groups; ++g) EXPECT_EQ(StateOf(run, g), v1::GROUP_STATE_TRAINING);
    return run;
  }
  v1::GroupState StateOf(const std::string& run, uint32_t group = 0) {
    return cluster_.Group(run, group).state();
  }
  v1::RunState RunStateOf(const std::string& run) { return cluster_.RunStatus(run).state(); }
  std::string ReasonOf(const std::string& run) { return cluster_.RunStatus(run).reason(); }
  // Makes a group train to its boundary and contribute.
  void Train(const std::string& run, uint32_t group = 0) {
    cluster_.ContributeOnce(cluster_.Lead(run, group));
  }
  // The newest decision that the group has received.
  v1::Decision LastDecision(const std::string& run, uint32_t group) {
    const FakeWorker& lead = cluster_.Lead(run, group);
    for (auto it = lead.received.rbegin(); it != lead.received.rend(); ++it) {
      if (it->has_decision()) return it->decision();
    }
    ADD_FAILURE() << "no decision";
    return v1::Decision();
  }
  bool HasEvent(v1::EventKind kind, const std::string& text) {
    const v1::EventsReply events = cluster_.Events();
    for (const v1::ClusterEvent& event : events.events()) {
      if (event.kind() == kind && event.text().find(text) != std::string::npos) return true;
    }
    return false;
  }

  FakeCluster cluster_;
};

}  // namespace cadre::testing
