// A group's checkpoint: the owned values of its ranks, stored as whole tensors in files that can be
// loaded with any mesh and number of groups.
//
// Saving: rank 0 gathers the values chunk by chunk in parameter order, so that no rank holds more
// than one chunk in addition to its own values. Loading: every rank reads what it owns from the
// files, so the folder must be readable on every machine; rank 0's manifest is authoritative. Both
// are collectives: all ranks pass equal arguments except for the values, and get the same status.
//
// Thread-compatible. Spans are borrowed for the call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rooted_files.h"
#include "comm/communicator.h"
#include "member/owned.h"
#include "member/trainer_progress.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/checkpoint.pb.h"

namespace cadre {

// What one rank owns of the group's model. Every position is owned by exactly one rank; states list
// the same intervals as the weights, in the same order.
struct CheckpointValues {
  std::vector<Owned> weights;
  // By OptimizerStateNames of the run's optimizer.
  std::vector<std::vector<Owned>> states;
  // States for other intervals than the weights, but all the same, in one order; equal names on all
  // ranks.
  std::vector<AveragingState> averaging;
  // Advances with every part that is read or written; may be null.
  TrainerProgress* progress = nullptr;
};

struct CheckpointOptions {
  // Parent directory of the checkpoint folders, on rank 0's machine.
  std::string directory;
  // Number of checkpoints of facts.run() that are kept, the newest; at least 1.
  int64_t keep = 2;
  // Elements gathered at a time: 16 MiB.
  int64_t chunk = int64_t{4} << 20;
  RootedFiles files = RootedFiles::Unrestricted();
};

// Writes "<directory>/step-<facts.step()>". `facts` (used on rank 0): the manifest's spec, step,
// version, cursor, seed, run and optimizer.updates; the other fields are set here. Errors: those of
// rank 0's file system, such as ResourceExhausted for a full disk, which leave existing checkpoints
// unchanged; those of the communicator, after which the group is dead; Internal if the ranks do not
// own every position exactly once. `warning`, which may be null, receives on rank 0 why old
// checkpoints stay.
absl::Status SaveCheckpoint(const CheckpointOptions& options, const ParameterIndex& index,
                            v1::CheckpointManifest facts, const CheckpointValues& values,
                            Communicator& group, std::string* warning = nullptr);

struct LoadedCheckpoint {
  // The folder or file that was read.
  std::string path;
  // Absent if only weights were read; all states are then unchanged.
  std::optional<v1::CheckpointManifest> manifest;
};

// Overwrites the values with the content of `from`: a checkpoint folder, a directory of checkpoints
// (of which the newest is read), or a *.safetensors file (weights only). `optimizer` is the run's.
// States of the averaging that the manifest does not name are unchanged. Errors, equal on all ranks
// and naming the rank: NotFound and others for files; InvalidArgument for a malformed file, another
// model (the differences are listed) or another kind of optimizer; DataLoss if the values are not
// those that were saved. After an error values are unspecified.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(
    const std::string& from, const ParameterIndex& index, const v1::Optimizer& optimizer,
    const CheckpointValues& values, Communicator& group,
    const RootedFiles& files = RootedFiles::Unrestricted());

}  // namespace cadre
