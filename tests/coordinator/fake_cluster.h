// Members that do what the protocol asks of them, around one Machine and a store in memory, in
// virtual time and one thread. Tests hold members back, kill them, and crash the machine.
//
// The models are made up: the digest of shard s at version 0 is 1000 + s, and every Apply mixes the
// participants into it, so that equal histories have equal digests and others do not.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events.h"
#include "coordinator/machine.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre::testing {

inline constexpr uint64_t kSchema = 0x5c4e3a;
inline constexpr uint64_t kTrainSamples = 640;
inline constexpr uint64_t kTestSamples = 100;

struct FakeWorker {
  std::string name;
  std::string host = "host";
  std::string device;
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
  std::string incarnation;
  std::string member_id;
  ConnectionId connection = 0;
  bool alive = true;
  // What the coordinator gave it.
  std::optional<v1::Assignment> assignment;
  std::optional<v1::Start> start;
  // What it said and is not answered, what has no answer (all said again after a reconnect).
  std::optional<v1::Prepared> prepared;
  std::optional<v1::Measured> measured;
  std::optional<v1::Contributed> contributed;
  std::optional<v1::Adopted> adopted;
  std::optional<v1::Evaluated> evaluated;
  // Rank 0: what the group holds and does.
  uint32_t version = 0;
  uint32_t step = 0;
  std::optional<uint32_t> next_step;
  // Everything that came, newest last.
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
  // What is on its disk, by run.
  struct Shard {
    uint32_t shard = 0;
    std::string lineage;
    uint32_t version = 0;
    std::map<uint32_t, uint64_t> digests;
    std::map<uint32_t, uint32_t> generations;
  };
  std::map<std::string, Shard> shards;
  std::vector<v1::CoordinatorMessage> received;
};

class FakeCluster {
 public:
  // Changes the machine's options before the machine is made.
  using Adjust = std::function<void(Machine::Options&)>;
  explicit FakeCluster(const Adjust& adjust = nullptr);

  // ---- People
  // The id of the new run; the status of a refusal is kept in last_status.
  std::string Submit(const v1::RunSpec& spec);
  void StopRun(const std::string& run);
  // Asks for a trace; what comes of it is in `traces`, by the request that is returned.
  RequestId TraceGroup(const std::string& run, uint32_t group, uint32_t steps = 3);
  void CancelTrace(RequestId request);

  // ---- Members
  FakeWorker& AddWorker(const std::string& name, const std::string& host = "host",
                        const std::string& device = "processor, 1 thread");
  FakeAggregator& AddAggregator(const std::string& name);
  // The process is gone, its stream with it.
  void Kill(FakeWorker& worker);
  void Kill(FakeAggregator& aggregator);
  // The stream breaks; the member does not know better than to come back.
  void Cut(FakeWorker& worker);
  void Cut(FakeAggregator& aggregator);
  void Connect(FakeWorker& worker);
  void Connect(FakeAggregator& aggregator);
  // A new process with the same name (and, for an aggregator, the same disk).
  void Restart(FakeWorker& worker);
  void Restart(FakeAggregator& aggregator);

  // A lead says what its steps take: `step_seconds`, of which half is computing.
  void Measure(FakeWorker& lead, double step_seconds);
  // A lead whose group waits for behaviour.train contributes to the round after its version.
  void ContributeOnce(FakeWorker& lead);

  // ---- Raw access for tests of refusals
  ConnectionId Open();
  void SendFrom(ConnectionId connection, const v1::MemberMessage& message);
  v1::Hello WorkerHello(const FakeWorker& worker) const;
  std::vector<v1::CoordinatorMessage> SentTo(ConnectionId connection) const;
  bool IsOpen(ConnectionId connection) const { return ended_.count(connection) == 0; }
  void Do(const Event& event);

  // ---- Time
  absl::Time now() const { return now_; }
  // Goes to `duration` from now through every deadline, members sending heartbeats.
  void Run(absl::Duration duration);
  // Runs until the condition holds, at most `limit`. False: it never did.
  bool RunUntil(const std::function<bool()>& condition, absl::Duration limit = absl::Minutes(10));
  bool RunUntilEnded(const std::string& run) {
    return RunUntil([&] { return machine().Ended(run); });
  }

  // ---- The coordinator
  Machine& machine() { return *machine_; }
  // Crashes it (what was not durable is lost, every stream breaks) and starts it again.
  void RestartCoordinator();
  // Crashes it right after its n-th transaction from now became durable, before anything was sent.
  void CrashAfterTransaction(int n) { crash_after_ = n; }
  int transactions() const { return transactions_; }

  v1::RunStatus RunStatus(const std::string& run);
  v1::GroupStatus Group(const std::string& run, uint32_t group);
  uint64_t Counter(const std::string& name);
  std::optional<v1::CommitRecord> Commit(const std::string& run, uint32_t round) const;
  const std::map<std::string, std::string>& store() const { return store_; }

  std::deque<FakeWorker>& workers() { return workers_; }
  std::deque<FakeAggregator>& aggregators() { return aggregators_; }
  FakeWorker& Lead(const std::string& run, uint32_t group);

  // What the members do by themselves; tests switch parts of it off.
  struct Behaviour {
    bool prepare = true;
    bool train = true;
    bool apply = true;
    bool evaluate = true;
    // Groups that train only when this is not set.
    std::set<uint32_t> idle_groups;
    // Correct answers of every hundred.
    uint64_t accuracy = 50;
    // What a group says it adopted is off by this.
    uint64_t digest_error = 0;
    uint64_t train_samples = kTrainSamples;
    // Changes what ranks say when they are prepared. Empty: nothing.
    std::function<void(v1::Prepared&)> on_prepared;
    // What every shard says of its part of a round: 0 and 0 add nothing to a discrepancy.
    double variance_between_groups = 0;
    double displacement = 0;
    // What aggregators say is wrong with version 0.
    std::string open_error;
  };
  Behaviour behaviour;
  // Whether ranks answer a TraceSteps, at once, with one event for each step.
  bool trace_at_once = false;
  std::map<RequestId, TraceAnswered> traces;
  absl::Status last_status;
  std::string last_run;

 private:
  void StartMachine();
  void Perform(const std::vector<Action>& actions);
  void Deliver();
  void Receive(FakeWorker& worker, const v1::CoordinatorMessage& message);
  void Receive(FakeAggregator& aggregator, const v1::CoordinatorMessage& message);
  void Decide(FakeWorker& worker, const v1::Decision& decision);
  void Evaluate(FakeWorker& worker, uint32_t version, uint64_t begin, uint64_t end);
  void DropPlace(FakeWorker& worker);
  // Whatever members have to do of their own accord. True: somebody did something.
  bool Act();
  void Contribute(FakeWorker& worker);
  void Resend(FakeWorker& worker);
  void Reconnect();
  uint64_t DigestOf(const std::string& run, uint32_t version) const;
  void CheckTransaction(const std::string& key, const std::string& value);

  Machine::Options options_;
  std::unique_ptr<Machine> machine_;
  std::map<std::string, std::string> store_;
  absl::Time now_;
  absl::Time heartbeat_at_;
  ConnectionId last_connection_ = 0;
  RequestId last_request_ = 0;
  uint64_t last_incarnation_ = 0;
  int transactions_ = 0;
  int crash_after_ = -1;
  bool crashed_ = false;
  std::deque<FakeWorker> workers_;
  std::deque<FakeAggregator> aggregators_;
  std::deque<Send> in_flight_;
  std::map<ConnectionId, std::vector<v1::CoordinatorMessage>> raw_received_;
  std::set<ConnectionId> ended_;
  uint32_t highest_generation_ = 0;
};

// A run of synthetic data that averages every `every_steps`, batch 32 a group.
v1::RunSpec MakeSpec(uint32_t groups, uint32_t ranks, uint32_t every_steps, uint32_t steps);

// What a rank says that was asked for a trace: one event for each step.
v1::MemberMessage TracedBy(const v1::TraceSteps& trace);

}  // namespace cadre::testing
