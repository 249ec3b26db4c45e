// The simulated members of a FakeCluster: what they have received and store, and how they react.
//
// The models are numbers: the digest of shard s at version 0 is 1000 + s, and every Apply mixes the
// participants into it, so that equal histories have equal digests and different ones do not.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/events/events.h"
#include "proto/cadre/v1/membership.pb.h"

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
    // The newest version that the coordinator has published.
    uint32_t published = 0;
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
  // Copies of the shard before its own: digests, by run and version.
  std::map<std::string, std::map<uint32_t, uint64_t>> copies;
  // Counters of its heartbeats.
  std::map<std::string, uint64_t> counters;
  std::vector<v1::CoordinatorMessage> received;
};

class FakeMembers {
 public:
  std::deque<FakeWorker>& workers() { return workers_; }
  std::deque<FakeAggregator>& aggregators() { return aggregators_; }
  // The worker that holds a rank of the group.
  FakeWorker& Rank(const std::string& run, uint32_t group, uint32_t rank);
  FakeWorker& Lead(const std::string& run, uint32_t group) { return Rank(run, group, 0); }

  // The messages that a lead would send now.
  v1::Contributed ContributionOf(const FakeWorker& lead) const;
  static v1::Evaluated EvaluationOf(const FakeWorker& lead, uint64_t begin, uint64_t end,
                                    uint64_t correct);

  // Automatic actions of the members; tests switch some off.
  struct Behaviour {
    bool prepare = true;
    bool train = true;
    bool apply = true;
    // Aggregators that carry out no order, and those that do not carry out CopyShard.
    std::set<std::string> hung;
    std::set<std::string> slow_copies;
    // Whether aggregators answer OpenRun.
    bool open = true;
    // Groups that do not complete their pulls, and whether ranks answer a Restage.
    std::set<uint32_t> slow_pulls;
    bool restage = true;
    // Error that is added to the digest of a version that was made from a seed.
    uint64_t seed_error = 0;
    // Aggregators compare the digest of such a version with that of the order.
    bool compare_digests = true;
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
    // What every shard of a run that codes its versions reports. Optional.
    std::optional<v1::ResidualSums> residual;
    // What every shard measures of the changes of a round. Optional.
    std::function<v1::ChangeSums(const v1::Apply&)> changes;
    // Error of aggregators for version 0.
    std::string open_error;
    // Aggregator that answers with it; empty: all.
    std::string open_error_of;
    // Whether ranks answer a TraceSteps immediately, with one event per step.
    bool trace = false;
    // Whether groups report that they have loaded their first version, and that they have adopted
    // a decided one.
    bool load = true;
    bool adopt = true;
  };
  Behaviour behaviour;

 protected:
  ~FakeMembers() = default;

  // Sends without delivering the answers.
  virtual void Post(ConnectionId connection, const google::protobuf::Message& body) = 0;
  void Receive(FakeWorker& worker, const v1::CoordinatorMessage& message);
  void Receive(FakeAggregator& aggregator, const v1::CoordinatorMessage& message);
  // Performs one automatic action of a member. Returns false if there is none.
  bool Act();
  void Contribute(FakeWorker& worker);
  static v1::Heartbeat HeartbeatOf(FakeWorker& worker);
  static void DropPlace(FakeWorker& worker);
  static void DropPlace(FakeAggregator&) {}
  std::string NewIncarnation();

 private:
  void OnStart(FakeWorker& worker, const v1::Start& start);
  void OnDecision(FakeWorker& worker, const v1::Decision& decision);
  // Whether all shards have this version, or accept contributions to the next one.
  bool CanPull(const FakeWorker& worker, uint32_t version) const;
  bool CanStage(const FakeWorker& worker) const;
  void LoadDecided(FakeWorker& worker);
  // Reports that the worker's group has its version.
  void ReportLoaded(FakeWorker& worker);
  void OnRestage(FakeWorker& worker, const v1::Restage& restage);
  void Evaluate(FakeWorker& worker, uint32_t version, uint64_t begin, uint64_t end);
  void Resend(FakeWorker& worker);
  void OnOpenRun(FakeAggregator& aggregator, const v1::OpenRun& open);
  void OnFence(FakeAggregator& aggregator, const v1::Fence& fence);
  void OnDeleteRun(FakeAggregator& aggregator, const v1::DeleteRun& order);
  void OnReportRun(FakeAggregator& aggregator, const std::string& run);
  // The digest of the version that the order makes.
  uint64_t MakeVersion(const v1::Apply& apply, const FakeAggregator::Shard& shard);
  void OnApply(FakeAggregator& aggregator, const v1::Apply& apply);
  void OnCopyShard(FakeAggregator& aggregator, const v1::CopyShard& order);
  uint64_t DigestOf(const std::string& run, uint32_t version) const;

  std::deque<FakeWorker> workers_;
  std::deque<FakeAggregator> aggregators_;
  uint64_t last_incarnation_ = 0;
  // Digests of all versions that were made, by (run, shard, version).
  std::map<std::tuple<std::string, uint32_t, uint32_t>, uint64_t> made_;
};

// The answer of a rank to a trace request: one event per step.
v1::Traced TracedBy(const v1::TraceSteps& trace);

}  // namespace cadre::testing
