// What a run is owed in its present state, and what becomes of it when it is late: an event, a
// reason of the run, an order in the status of the aggregator, a metric.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/aggregators.h"
#include "coordinator/run/group_planner.h"
#include "coordinator/run/obligations.h"
#include "coordinator/run/run_context.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/slot.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

class RunView;

class RunObligations {
 public:
  // Borrowed.
  struct Parts {
    const RunEvaluation& evaluation;
    const RunRounds& rounds;
    const Aggregators& aggregators;
  };
  RunObligations(const RunView& run, const Parts& parts, const RunContext& context)
      : run_(run), parts_(parts), cluster_(context.cluster), planner_(context.planner) {}

  // Called at the end of every event that concerns the run, and at NextDeadline. Reports what has
  // become late. What is owed is determined at most once in a second.
  void Update();
  absl::Time NextDeadline() const;

  size_t CountLate() const { return obligations_.Late(cluster_.now()).size(); }
  // What is late; empty if nothing is.
  std::string Reason() const;
  // Names of the aggregators that are late to open their shard, or to apply the closing round.
  std::set<std::string> LateAggregators() const;
  // Adds orders that are late and that the aggregator itself does not report.
  void FillDelayed(const Member& aggregator, v1::AggregatorStatus& status) const;

 private:
  std::vector<Obligation> Owed() const;
  void AddOrders(std::vector<Obligation>& owed) const;
  // The orders of a lost shard.
  void AddRestore(uint32_t shard, const ShardRestore& restore, std::vector<Obligation>& owed) const;
  // Those of groups.
  void AddWork(std::vector<Obligation>& owed) const;
  // `what`: what the member has not done.
  void AddOrder(uint32_t shard, absl::string_view kind, uint32_t number, absl::string_view what,
                std::vector<Obligation>& owed) const;
  void AddOrder(const std::string& aggregator, absl::string_view kind, uint32_t number,
                absl::string_view what, std::vector<Obligation>& owed) const;
  void AddGroup(const Slot& slot, absl::string_view kind, uint32_t number, absl::string_view what,
                std::vector<Obligation>& owed) const;
  absl::Time ProgressOf(const Slot& slot) const;

  const RunView& run_;
  const Parts parts_;
  Cluster& cluster_;
  const GroupPlanner& planner_;
  Obligations obligations_;
  absl::Time updated_ = absl::InfinitePast();
  // An event has occurred since.
  bool outdated_ = false;
};

}  // namespace cadre
