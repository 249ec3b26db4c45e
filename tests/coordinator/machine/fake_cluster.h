// A cluster of simulated members around one Machine (the coordinator's state machine) and a store
// in memory, in virtual time and one thread. The members follow the protocol; tests delay and kill
// them, and crash the machine.
//
// The models are numbers: the digest of shard s at version 0 is 1000 + s, and every Apply mixes the
// participants into it, so that equal histories have equal digests and different ones do not.
#pragma once

#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events/events.h"
#include "coordinator/machine/machine.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre::testing {

inline constexpr uint64_t kTrainSamples = 640;
inline constexpr uint64_t kTestSamples = 100;

struct FakeWorker {
  std::string name;
  std::string host = "host";
  std::string device;
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
  // All that exist for CUDA devices.
  std::vector<v1::RunSpec::Precision> precisions;
  // Reservation of a program's rank.
  std::optional<v1::Reservation> reservation;
  std::string incarnation;
  std::string member_id;
  ConnectionId connection = 0;
  bool alive = true;
  // Newest messages of the coordinator for the current generation.
  std::optional<v1::Assignment> assignment;
  std::optional<v1::Start> start;
  // Messages that are not answered yet or have no answer; all are sent again after a reconnect.
  std::optional<v1::Prepared> prepared;
  std::optional<v1::Measured> measured;
  std::optional<v1::Contributed> contributed;
  std::optional<v1::Adopted> adopted;
  std::optional<v1::Evaluated> evaluated;
  // A decision whose version the group is still pulling; it holds its contribution meanwhile.
  std::optional<v1::Decision> pulling;
  // What heartbeats say of its training thread while it has a rank; unspecified: nothing. A hung
  // thread makes no progress, and does not leave its activity when it is released.
  v1::Activity activity = v1::ACTIVITY_UNSPECIFIED;
  uint64_t progress = 0;
  bool hung = false;
  // State of the group; used on rank 0 (the lead) only.
  uint32_t version = 0;
  uint32_t step = 0;
  std::optional<uint32_t> next_step;
  // All received messages, oldest first.
  std::vector<v1::CoordinatorMessage> received;

  bool lead() const { return assignment.has_value() && assignment->place().rank() == 0; }
  const v1::RankSlot& place() const { return assignment->place(); }
};

struct FakeAggregator {
  std::string name;
  std::string incarnation;
  std::string address;
  ConnectionId connection = 0;
  bool alive = true;
  // Data on its disk, by run.
  struct Shard {
    uint32_t shard = 0;
    std::string lineage;
    uint32_t version = 0;
    std::map<uint32_t, uint64_t> digests;
    std::map<uint32_t, uint32_t> generations;
    // Keys of these generations; empty if a group waits for one.
    std::map<uint32_t, std::string> keys;
    v1::OpenRun open;
    v1::Apply newest;
    // The version after which a shard that has lost its values accepts contributions, the values
    // that ranks have staged since then, as (round, seed, group, rank), and the order that waits.
    std::optional<uint32_t> hollow;
    std::set<std::tuple<uint32_t, bool, uint32_t, uint32_t>> staged;
    std::optional<v1::Apply> waiting;
    bool closed = false;
  };
  // Its data folder was removed.
  bool wiped = false;
  std::map<std::string, Shard> shards;
  std::vector<v1::CoordinatorMessage> received;
};

class FakeCluster {
 public:
  // Changes the machine's options before the machine is created.
  using Adjust = std::function<void(Machine::Options&)>;
  explicit FakeCluster(const Adjust& adjust = nullptr);

  // ---- Users
  // Returns the id of the new run; the status of a refusal is in last_status.
  std::string Submit(const v1::RunSpec& spec, bool join_existing = false, bool join_ended = false);
  void StopRun(const std::string& run);
  void ResumeRun(const std::string& run);
  // The status of the answer is in last_status.
  void DeleteRun(const std::string& run);
  // Returns the runs found; the status is in last_status.
  v1::AdoptReply Adopt(const std::string& run = "");
  // Returns the ids of the workers that matched; the status is in last_status.
  std::vector<std::string> Cordon(const std::string& member, bool undo = false, bool drain = false,
                                  double drain_seconds = 0);
  // The status of the answer is in last_status.
  void Scale(const std::string& run, uint32_t groups);
  void AnswerSearches();
  // Requests a trace; its result is in `traces`, by the returned request.
  RequestId TraceGroup(const std::string& run, uint32_t group, uint32_t steps = 3);
  void CancelTrace(RequestId request);

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
  // The messages that a lead would send now.
  v1::Contributed ContributionOf(const FakeWorker& lead) const;
  static v1::Evaluated EvaluationOf(const FakeWorker& lead, uint64_t begin, uint64_t end,
                                    uint64_t correct);

  // ---- Streams without a member, for tests of refusals
  ConnectionId Open();
  v1::Hello WorkerHello(const FakeWorker& worker) const;
  std::vector<v1::CoordinatorMessage> SentTo(ConnectionId connection) const;
  bool IsOpen(ConnectionId connection) const { return ended_.count(connection) == 0; }
  void Do(const Event& event);

  // ---- Time
  absl::Time now() const { return now_; }
  // Advances the time through every deadline; members send heartbeats.
  void Run(absl::Duration duration);
  // Runs until the condition holds. Returns false if it did not hold within `limit`.
  bool RunUntil(const std::function<bool()>& condition, absl::Duration limit = absl::Minutes(10));
  // Whether the run has ended, or its record was removed since.
  bool Ended(const std::string& run);
  bool RunUntilEnded(const std::string& run) {
    return RunUntil([&] { return Ended(run); });
  }

  // ---- The coordinator
  Machine& machine() { return *machine_; }
  // Crashes it (data that is not durable is lost, every stream breaks) and starts it again.
  void RestartCoordinator();
  // The same with an empty store.
  void LoseStore();
  // The same with an older copy of the store.
  void RollBackStore(const std::map<std::string, std::string>& copy);
  // Crashes it after its n-th transaction from now is durable, before its messages are sent.
  void CrashAfterTransaction(int n) { crash_after_ = n; }
  int transactions() const { return transactions_; }

  v1::RunStatus RunStatus(const std::string& run);
  v1::GroupStatus Group(const std::string& run, uint32_t group);
  v1::StatusReply Status() { return machine_->Status(now_); }
  v1::HistoryReply History(const std::string& run) {
    v1::HistoryRequest request;
    request.set_run(run);
    return machine_->History(request).value();
  }
  v1::EventsReply Events() { return machine_->Events({}); }
  uint64_t Counter(const std::string& name);
  std::optional<v1::CommitRecord> Commit(const std::string& run, uint32_t round) const;
  const std::map<std::string, std::string>& store() const { return store_; }

  std::deque<FakeWorker>& workers() { return workers_; }
  std::deque<FakeAggregator>& aggregators() { return aggregators_; }
  // The worker that holds a rank of the group.
  FakeWorker& Rank(const std::string& run, uint32_t group, uint32_t rank);
  FakeWorker& Lead(const std::string& run, uint32_t group) { return Rank(run, group, 0); }

  // Automatic actions of the members; tests switch some off.
  struct Behaviour {
    bool prepare = true;
    bool train = true;
    bool apply = true;
    // Whether aggregators answer OpenRun.
    bool open = true;
    // Groups that do not complete their pulls, and whether ranks answer a Restage.
    std::set<uint32_t> slow_pulls;
    bool restage = true;
    // Error that is added to the digest of a version that was made from a seed.
    uint64_t seed_error = 0;
    bool evaluate = true;
    // Correctly predicted labels per hundred.
    uint64_t accuracy = 50;
    // Error that is added to the digest of an adopted version in reports of groups.
    uint64_t digest_error = 0;
    uint64_t train_samples = kTrainSamples;
    // Changes the Prepared messages of ranks. Optional.
    std::function<void(v1::Prepared&)> on_prepared;
    // Reported by every shard for each round; 0 and 0 add nothing to a discrepancy.
    double variance_between_groups = 0;
    double displacement = 0;
    // Error of aggregators for version 0.
    std::string open_error;
    // Whether ranks answer a TraceSteps immediately, with one event per step.
    bool trace = false;
    // Whether groups report that they have loaded their first version, and that they have adopted
    // a decided one.
    bool load = true;
    bool adopt = true;
    // Whether searches of plans wait for AnswerSearches.
    bool hold_searches = false;
  };
  Behaviour behaviour;
  std::map<RequestId, Replied> traces;
  absl::Status last_status;
  std::string last_run;
  bool last_run_ended = false;
  std::vector<std::string> last_members;
  v1::AdoptReply last_adopted;

 private:
  void StartMachine();
  void Perform(const std::vector<Action>& actions);
  void Deliver();
  // Sends without delivering the answers.
  void Post(ConnectionId connection, const google::protobuf::Message& body);
  void Receive(FakeWorker& worker, const v1::CoordinatorMessage& message);
  void Receive(FakeAggregator& aggregator, const v1::CoordinatorMessage& message);
  void OnDecision(FakeWorker& worker, const v1::Decision& decision);
  // Whether all shards have this version, or accept contributions to the next one.
  bool CanPull(const FakeWorker& worker, uint32_t version) const;
  bool CanStage(const FakeWorker& worker) const;
  void Adopt(FakeWorker& worker);
  // Reports that the worker's group has its version.
  void ReportLoaded(FakeWorker& worker);
  void OnRestage(FakeWorker& worker, const v1::Restage& restage);
  void OnApply(FakeAggregator& aggregator, const v1::Apply& apply);
  void Evaluate(FakeWorker& worker, uint32_t version, uint64_t begin, uint64_t end);
  static void DropPlace(FakeWorker& worker);
  static void DropPlace(FakeAggregator&) {}
  // Performs one automatic action of a member. Returns false if there is none.
  bool Act();
  void Contribute(FakeWorker& worker);
  static v1::Heartbeat HeartbeatOf(FakeWorker& worker);
  void Resend(FakeWorker& worker);
  void ReconnectAll();
  std::string NewIncarnation();
  uint64_t DigestOf(const std::string& run, uint32_t version) const;
  void CheckTransaction(const std::string& key, const std::string& value);

  Machine::Options options_;
  std::vector<SearchPlans> searches_;
  std::unique_ptr<Machine> machine_;
  std::map<std::string, std::string> store_;
  absl::Time now_;
  absl::Time heartbeat_at_;
  ConnectionId last_connection_ = 0;
  RequestId last_request_ = 0;
  std::set<RequestId> trace_requests_;
  uint64_t last_incarnation_ = 0;
  int transactions_ = 0;
  int crash_after_ = -1;
  bool crashed_ = false;
  std::deque<FakeWorker> workers_;
  std::deque<FakeAggregator> aggregators_;
  std::deque<cadre::Send> in_flight_;
  // Digests of all versions that were made, by (run, shard, version).
  std::map<std::tuple<std::string, uint32_t, uint32_t>, uint64_t> made_;
  std::map<ConnectionId, std::vector<v1::CoordinatorMessage>> raw_received_;
  std::set<ConnectionId> ended_;
  uint32_t highest_generation_ = 0;
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

// The answer of a rank to a trace request: one event per step.
v1::Traced TracedBy(const v1::TraceSteps& trace);

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
  v1::GroupState StateOf(const std::string& run, uint32_t group = 0) {
    return cluster_.Group(run, group).state();
  }
  v1::RunState RunStateOf(const std::string& run) { return cluster_.RunStatus(run).state(); }
  std::string ReasonOf(const std::string& run) { return cluster_.RunStatus(run).reason(); }
  // Makes a group train to its boundary and contribute.
  void Train(const std::string& run, uint32_t group = 0) {
    cluster_.ContributeOnce(cluster_.Lead(run, group));
  }

  FakeCluster cluster_;
};

}  // namespace cadre::testing
