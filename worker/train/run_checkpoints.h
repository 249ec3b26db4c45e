// The checkpoints of a run, as seen by one rank: when they are due, what their manifest contains,
// and how a run starts from one.
//
// Borrows its arguments. Thread-compatible. Begin, CheckDirectory and Save are
// collectives, called at the same step on every rank of the group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/counters.h"
#include "base/rooted_files.h"
#include "member/group_control.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/checkpoint.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/checkpoint.h"
#include "worker/train/replica.h"

namespace cadre {

class RunCheckpoints {
 public:
  RunCheckpoints(const v1::Assignment& assignment, Replica& replica, GroupControl& control,
                 Counters& counters, TrainerProgress& progress, const RootedFiles& files)
      : assignment_(assignment),
        replica_(replica),
        control_(control),
        counters_(counters),
        progress_(progress),
        files_(files) {}

  // Loads weights and optimizer state from the checkpoint that the run starts from, if the run
  // names one, and what `averaging` names. With aggregators, the weights must then be those of
  // version 0. Values that the checkpoint does not contain remain; rank 0 of group 0 logs the
  // names of the states of the averaging that only one of the checkpoint and the run has, and adds
  // them to the warnings of `progress`. Errors: those
  // of LoadCheckpoint; InvalidArgument for a step other than that of `start`; DataLoss for weights
  // that are not version 0. Requires: no gather of weights is due.
  absl::Status Begin(const v1::Start& start, const std::vector<AveragingState>& averaging);

  // Called before training: rejects a directory that contains checkpoints of another run
  // (run.proto, Checkpoint). Errors: FailedPrecondition on every rank, naming the newest such
  // checkpoint; PermissionDenied for a directory that `files` does not permit;
  // those of the communicator.
  absl::Status CheckDirectory();

  // Sets the step that training continues from: nothing is due before the next multiple of
  // every_steps.
  void StartAt(uint32_t step) { saved_ = step; }
  // Whether this group writes checkpoints: the assignments of the others have no directory.
  bool writes() const { return !assignment_.spec().checkpoint().directory().empty(); }
  // Whether the group must save at this step. `last`: the run may end here.
  bool Due(uint32_t step, bool last) const;

  struct Facts {
    uint32_t step = 0;
    uint32_t version = 0;
    // Position of the first sample that no group has used.
    uint64_t position = 0;
    uint64_t train_samples = 1;
  };
  // Saves a checkpoint. If it cannot be written, training continues. Rank 0 sends Checkpointed in
  // either case, with `warning`. Counts checkpoints_saved and checkpoints_failed. Errors: those of
  // the communicator.
  absl::Status Save(const Facts& facts, std::vector<AveragingState> averaging, std::string warning);
  // Whether the directory has the run's checkpoint of this step, which rank 0 then reports. Errors:
  // those of the communicator.
  absl::StatusOr<bool> IsSaved(uint32_t step);

 private:
  bool lead() const { return assignment_.place().rank() == 0; }
  void Report(uint32_t step, absl::string_view error, absl::string_view warning);
  CheckpointValues Values(std::vector<AveragingState> averaging);
  absl::Status CheckManifest(const std::string& path, const v1::CheckpointManifest& manifest,
                             uint32_t step) const;

  const v1::Assignment& assignment_;
  Replica& replica_;
  GroupControl& control_;
  Counters& counters_;
  TrainerProgress& progress_;
  const RootedFiles& files_;
  // The latest saved step, or the one that training started at.
  uint32_t saved_ = 0;
};

}  // namespace cadre
