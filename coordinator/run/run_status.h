// The status of a run and of its groups, from its parts.
//
// The status is computed from the state for every request; only reports of the members are stored
// for it. All times are by the coordinator's clock. Values that a restart loses (progress,
// heartbeats, measured step times) are absent until the members have sent them again.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/events/retention.h"
#include "coordinator/run/aggregators.h"
#include "coordinator/run/run_context.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_obligations.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/stale_record.h"
#include "model/opaque.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

class RunWithStatus : public RunView {
 public:
  const Round& round() const final { return parts_.rounds.round(); }
  const Commits& commits() const final { return parts_.rounds.commits(); }
  const Shards& shards() const final { return parts_.aggregators.shards(); }
  bool behind() const final { return live() && parts_.stale.known(); }
  uint64_t Parameters() const final;

  v1::RunStatus Status(absl::Time now) const;
  // `details`: also the plan, and what every rank holds.
  v1::GroupStatus StatusOf(const Slot& slot, bool details) const;
  // Adds the shards that the aggregator stores for this run, and orders that are late and that it
  // does not report.
  void FillShards(const Member& aggregator, v1::AggregatorStatus& status) const;
  // Number of obligations to this run that are late.
  size_t CountLate() const { return parts_.obligations.CountLate(); }
  // As RunRounds::CheckKept.
  absl::Status CheckKept(uint32_t version) const {
    return parts_.rounds.versions().CheckKept(version);
  }
  // What decides whether the run, which has ended, is kept.
  EndedRun Ended() const;
  // Whether no aggregators could be chosen for its shards.
  bool waits_for_aggregators() const { return active() && parts_.aggregators.choice().lacking(); }
  // Whether no aggregator can take a shard that is to move.
  bool lacks_target() const { return active() && parts_.aggregators.moves().lacks_target(); }
  // Whether the run has ended with a version that cannot be read without this aggregator.
  bool HasSoleModelOn(absl::string_view aggregator) const;
  // Empty: the run waits for nothing.
  std::string WaitReason() const;
  // What the run waits for besides workers, for a program that has joined; empty if that is nothing
  // that is known. Unlike the status, it takes no time that grows with the number of workers.
  std::string WaitReasonForPrograms() const { return WaitReasonBesideWorkers().value_or(""); }

 protected:
  // Borrowed. They may be constructed later.
  struct Parts {
    const RunEvaluation& evaluation;
    const RunRounds& rounds;
    const Aggregators& aggregators;
    const StaleRecord& stale;
    const RunObligations& obligations;
  };
  RunWithStatus(const StoredRun& stored, const History& history, const Slots& slots,
                const RunContext& context, const Parts& parts)
      : RunView(stored, history, slots),
        cluster_(context.cluster),
        planner_(context.planner),
        options_(context.options),
        parts_(parts) {}
  ~RunWithStatus() = default;

 private:
  // nullopt: only workers are missing.
  std::optional<std::string> WaitReasonBesideWorkers() const;
  // Names the aggregator that is away, since when, and for how long groups wait for it; empty if
  // none is.
  std::string AwayReason() const;
  std::string MissingWorkers() const;
  // Programs for this run that lack ranks; empty if there are none.
  std::string IncompletePrograms() const;
  std::string MissingNativeWorkers() const;
  // The workers that other runs hold which lack workers themselves; empty if there are none.
  std::string BlockedText() const;
  // Idle workers of this kind that the run can use, also those that are reserved for other runs.
  size_t CountIdle(v1::Cluster::Device kind) const;
  // The devices that the run requires, for the reason; empty if it requires none.
  std::string WorkersText() const;
  // Why the round waits: for a rollback, or for groups that load a version. Empty if it does not.
  std::string RoundReason() const;
  void FillVersions(v1::RunStatus& status) const;
  // Fills what a group waits for, or why its last generation has ended.
  void FillReason(const Slot& slot, v1::GroupStatus& status) const;
  // Fills what concerns the deletion of a run that has ended.
  void FillRemoval(v1::RunStatus& status) const;

  const Cluster& cluster_;
  const GroupPlanner& planner_;
  const CoordinatorOptions& options_;
  const Parts parts_;
  // A graph of the model is built for it, so it is computed once.
  mutable std::optional<uint64_t> parameters_;
};

}  // namespace cadre
