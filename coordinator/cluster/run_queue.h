// The live runs in the order in which they are served, what they wait for, and what they use.
//
// Runs of a higher priority come first, and among equal priorities those that were submitted first.
// A run that waits for workers keeps the idle ones that it can use for itself, so runs behind it
// get the others only: without this, small runs would take every worker that becomes idle, and a
// large group would never form. A run that the registered workers are not enough for keeps none,
// and neither does one for which they are enough only with those of blocked runs: a blocked run
// holds workers and needs more of them before it can continue, so each would wait for the other.
// If two runs have been blocked for kMaxBlocked, the later one releases its workers as soon as the
// earlier one can continue with them.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/membership.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

inline constexpr absl::Duration kMaxBlocked = absl::Minutes(1);

class RunQueue {
 public:
  // Borrowed.
  explicit RunQueue(const Membership& members) : members_(members) {}

  struct Run {
    std::string id;
    int32_t priority = 0;
    // It waits for `slots` groups of `ranks` workers of one kind (unspecified: any).
    v1::Cluster::Device device = v1::Cluster::DEVICE_UNSPECIFIED;
    uint32_t ranks = 0;
    size_t slots = 0;
    // It is blocked: it holds workers, and returns none of them before it has received at least so
    // many more; 0: it is not. Set has the time from which it counts as blocked if it was not yet.
    size_t lacks = 0;
    absl::Time blocked_since = absl::InfinitePast();
    // Its groups are programs, so it can neither use workers of others nor have any for them.
    bool of_programs = false;
    // A run with another precision may hold workers that this one cannot use.
    v1::RunSpec::Precision precision = v1::RunSpec::FP32;
    // When it ends, by its progress; InfiniteFuture: not known.
    absl::Time end = absl::InfiniteFuture();
    // Names of the aggregators of its shards. Until these have its first version, their heartbeats
    // may not count the bytes that they need for it.
    std::vector<std::string> shards;
    int64_t unreported_bytes = 0;
  };
  void Set(uint32_t number, Run run);
  // The run has ended.
  void Erase(uint32_t number);

  // The runs in the order in which they are served.
  std::vector<uint32_t> InOrder(const std::set<uint32_t>& numbers) const;

  // ---- Workers
  // Workers of this kind that the run and the runs before it wait for; that only those before it
  // wait for; and the first of these.
  size_t DemandUpTo(uint32_t run, v1::Cluster::Device kind) const;
  size_t DemandBefore(uint32_t run, v1::Cluster::Device kind) const;
  std::string FirstBefore(uint32_t run, v1::Cluster::Device kind) const;
  // Whether the run or a run before it waits for workers.
  bool AnyDemandUpTo(uint32_t run) const;
  // Workers of the kind that blocked runs other than this one hold, and the first of these runs.
  struct Blocked {
    size_t workers = 0;
    std::string first;
  };
  Blocked HeldByBlocked(uint32_t run, v1::Cluster::Device kind) const;
  // The run to which a blocked run gives up its workers.
  std::optional<std::string> TakerFrom(uint32_t run, absl::Time now) const;
  // The blocked runs that give up theirs.
  std::vector<uint32_t> Givers(absl::Time now) const;
  // When the run has been blocked for kMaxBlocked; InfiniteFuture: it is not blocked.
  absl::Time BlockedUntil(uint32_t run) const;
  // When enough workers of the kind will be idle for the runs before this one and a group of it,
  // and the run whose end that is; nullopt if it is not known.
  struct Start {
    absl::Time at;
    std::string after;
  };
  std::optional<Start> ExpectedStart(uint32_t run, v1::Cluster::Device kind) const;

  // ---- Aggregators
  // Aggregators that receive no shards of new runs, by an operator. They need not be registered.
  void SetCordoned(const std::string& aggregator, bool cordoned) {
    cordoned ? void(cordoned_aggregators_.insert(aggregator))
             : void(cordoned_aggregators_.erase(aggregator));
  }
  bool IsCordoned(const std::string& aggregator) const {
    return cordoned_aggregators_.contains(aggregator);
  }
  // Cordoned aggregators whose shards of live runs move to others.
  void SetDraining(const std::string& aggregator, bool draining) {
    draining ? void(draining_aggregators_.insert(aggregator))
             : void(draining_aggregators_.erase(aggregator));
  }
  bool IsDraining(const std::string& aggregator) const {
    return draining_aggregators_.contains(aggregator);
  }
  bool AnyDraining() const { return !draining_aggregators_.empty(); }
  // A shard of the run moves to the aggregator, which may not report these bytes as reserved yet.
  // No name: none moves.
  void SetArriving(uint32_t number, const std::string& aggregator, int64_t bytes);
  // Shards of live runs on the aggregator or on the way to it, and bytes for runs other than this
  // one that it may not report as reserved yet.
  int CountShards(absl::string_view aggregator) const;
  int64_t UnreportedBytes(absl::string_view aggregator, uint32_t except) const;

 private:
  // Orders as InOrder.
  using Key = std::pair<int64_t, uint32_t>;
  Key KeyOf(uint32_t number) const;
  // Whether `taker` can continue with the workers of `giver`, and those of later blocked runs are
  // not enough.
  bool LetsContinue(Key giver, Key taker) const;
  // Calls `visit` with each run that waits for workers of the kind, in order, up to `last`.
  template <typename Visit>
  void ForEachWaiting(Key last, v1::Cluster::Device kind, const Visit& visit) const;

  const Membership& members_;
  std::map<uint32_t, Run> runs_;
  // Shards that move, by the number of the run.
  struct Arrival {
    std::string aggregator;
    int64_t bytes = 0;
  };
  std::map<uint32_t, Arrival> arriving_;
  // Those with waiting slots.
  std::set<Key> waiting_;
  // Blocked runs, and since when.
  std::map<Key, absl::Time> blocked_;
  std::set<std::string> cordoned_aggregators_;
  std::set<std::string> draining_aggregators_;
};

}  // namespace cadre
