// The groups of a run: forming, starting and ending of generations, changes of plans, growth.
//
//   run_groups.cc           the life of a generation, which it describes
//   run_groups_planning.cc  measurements, changes of plans, growth
//
// Changes the slots, and the fields of RunRecord of the start of the run; in a run that never
// averages, the position to which a new group rewinds it. Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/aggregators.h"
#include "coordinator/run/checkpoint_writer.h"
#include "coordinator/run/formation.h"
#include "coordinator/run/group_planner.h"
#include "coordinator/run/round.h"
#include "coordinator/run/run_context.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/slots.h"
#include "coordinator/run/stored_run.h"
#include "coordinator/run/traces.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// The cause of a planned release, which is not a failure.
inline constexpr v1::FailureCause kReleased = v1::FAILURE_CAUSE_UNSPECIFIED;

class RunGroups {
 public:
  // The parts whose state ends with a generation. Borrowed.
  struct Parts {
    Slots& slots;
    Traces& traces;
    RunEvaluation& evaluation;
    RunRounds& rounds;
    Aggregators& aggregators;
  };
  RunGroups(const RunView& run, StoredRun& stored, const Parts& parts, const RunContext& context);

  CheckpointWriter& checkpoint_writer() { return checkpoint_writer_; }
  // Groups of which a rank has lost its stream, and until when they are awaited.
  const Round::Away& away() const { return away_; }
  // When the first group was prepared, while none has started.
  absl::Time barrier_since() const { return barrier_since_; }

  // Loads the groups from the store. Errors: DataLoss.
  absl::Status Load(const std::map<std::string, std::string>& records);
  // Members keep their ranks: all of them have new leases, so they can return.
  void PlaceMembers();
  // Reports to the queue what the run waits for and what it uses.
  void UpdateDemand();

  // Returns false if too few aggregators can be used.
  bool ChooseAggregators(const WorkerIds& idle);
  // Forms at most `formations` groups from the idle workers, which it reduces, and takes those that
  // are used or reserved from `idle`. Errors: ResourceExhausted if the run, which has not started,
  // is too large for the workers.
  absl::Status Form(WorkerIds& idle, int& formations);
  // The rank is prepared, and its data is that of the run. Errors: InvalidArgument if it does not
  // follow the group's plan.
  absl::Status Prepare(const v1::Prepared& prepared);
  void MaybeStart();
  void OnMeasured(const Member& member, const v1::Measured& measured);
  void OnPredicted(const StepPredicted& found);
  // The worker holds a rank. `agrees`: it claims that rank.
  void OnRejoined(const Member& member, bool agrees);
  // The stream of a worker that holds this rank has ended, or the worker was removed.
  void OnClosed(const Member& member);
  // The group's generation is included in a commit.
  void RecordSuccess(Slot& slot);
  // At a commit: ends the generation if the group can grow, or have a better plan.
  bool MaybeGrow(Slot& slot);
  bool MaybeReplan(Slot& slot);
  // Adds or removes slots as the division of the samples requires.
  void Resize();

  // Ends the generation: releases its ranks and discards its contribution and its evaluation part.
  void Fence(Slot& slot, absl::string_view reason, v1::FailureCause cause);
  // Ends a generation whose contributions successive rounds have left out.
  void EndDistrusted(Slot& slot, const std::string& reason);
  void FenceAll(absl::string_view reason);
  // Ends the generation as planned; the next one has the same members, if they stay connected.
  void FormAgain(Slot& slot, absl::string_view reason);
  // Ends all generations if an aggregator has been away for too long
  // (ShardDirectory::PatientUntil). Others are formed when it has returned.
  void EndPatience();
  // Releases all members and clears all slots.
  void Disband(absl::string_view reason);

 private:
  // Number of waiting slots that may reserve workers.
  size_t CountServableSlots() const;
  // When training ends, by its progress; InfiniteFuture: not known.
  absl::Time ExpectedEnd() const;
  bool Needs(const Slot& slot) const;
  absl::StatusOr<Formation> Choose(const Slot& slot, WorkerIds& idle);
  void FormGeneration(Slot& slot, const Formation& formation);
  void Rewind();
  // Stores the slot after its state has changed.
  void Moved(const Slot& slot);
  void SendAssignment(const Slot& slot, uint32_t rank);
  // The caller saves the record of the run.
  void StartGroup(Slot& slot, bool catches_up);
  // Whether the shards do not store the version any more that the group starts from, and the group
  // has not adopted another one.
  bool HasObsoleteStart(const Slot& slot) const;
  void SendStart(const Slot& slot, uint32_t rank);
  // After a reconnect, sends its part again to a group that has finished training, since no message
  // of the group would request it.
  void ResendPart(Slot& slot);
  void ReleaseMembers(Slot& slot, absl::string_view reason);

  // Whether a faster plan could be worth the release of the group.
  bool MayGain(const Slot& slot) const;
  // Whether the same members would form the group again after a release: all are connected, and no
  // earlier group waits for workers.
  bool CanReform(const Slot& slot) const;

  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  Slots& slots_;
  Traces& traces_;
  RunEvaluation& evaluation_;
  RunRounds& rounds_;
  Aggregators& aggregators_;
  Cluster& cluster_;
  GroupPlanner& planner_;
  const CoordinatorOptions& options_;
  CheckpointWriter checkpoint_writer_;
  Round::Away away_;
  absl::Time barrier_since_ = absl::InfiniteFuture();
};

}  // namespace cadre
