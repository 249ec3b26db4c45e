// The checkpoints of a run as one rank takes part in them: when they are due, what they say beside
// the values, and how a run begins from one.
//
// Borrows assignment, replica and counters. Thread-compatible. Begin and Save are collectives:
// every rank of the group is there, at the same step.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/counters.h"
#include "proto/cadre/v1/checkpoint.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/checkpoint.h"
#include "worker/train/replica.h"

namespace cadre {

class RunCheckpoints {
 public:
  RunCheckpoints(const v1::Assignment& assignment, Replica& replica, Counters& counters)
      : assignment_(assignment), replica_(replica), counters_(counters) {}

  // Takes weights and the optimiser's state of the checkpoint that the run begins from, if it names
  // one, and gathers the weights. Where there are aggregators, the replica holds their version 0.
  // Errors: those of LoadCheckpoint; InvalidArgument for another step than the assignment's;
  // DataLoss for weights that are not version 0.
  absl::Status Begin();

  // A collective, before anything is trained: refuses a directory that is another run's (run.proto,
  // Checkpoint). Errors: FailedPrecondition, on every rank, naming what lies there; those of the
  // communicator.
  absl::Status CheckDirectory();

  // Where training goes on from: nothing has to be saved before the next multiple of every_steps.
  void StartAt(uint32_t step) { saved_ = step; }
  // Group 0 keeps checkpoints of every so many steps, and of what may be the last.
  bool Due(uint32_t step, bool last) const;

  struct Facts {
    uint32_t step = 0;
    uint32_t version = 0;
    int groups = 1;
    int64_t train_samples = 1;
  };
  // A checkpoint that cannot be written is told and counted, and training goes on without. Counts
  // checkpoints_saved and checkpoints_failed. Errors: those of the communicator.
  absl::Status Save(const Facts& facts);

 private:
  bool lead() const { return assignment_.place().rank() == 0; }
  int64_t batch() const { return assignment_.spec().batch_per_group(); }
  CheckpointValues Values();
  absl::Status CheckManifest(const std::string& path, const v1::CheckpointManifest& manifest) const;
  // Of the first sample that no group has taken when `step` begins.
  uint64_t PositionAt(uint32_t step, int groups) const;

  const v1::Assignment& assignment_;
  Replica& replica_;
  Counters& counters_;
  // Step that was saved last, or that it began at.
  uint32_t saved_ = 0;
};

}  // namespace cadre
