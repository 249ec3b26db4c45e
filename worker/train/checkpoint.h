// A group's checkpoint: what its ranks own becomes whole tensors in files, and comes back under any
// mesh and group count.
//
// Saving: the ranks' values pass through rank 0 chunk by chunk, in flat order, so that nobody ever
// holds more than a chunk beside its own. Loading: every rank reads from the files just what it
// owns, so the folder must be readable on every machine; rank 0's manifest counts. Both are
// collectives: every rank of the group calls with the same arguments but for its values, and every
// rank gets the same status.
//
// Thread-compatible. Spans are lent for the call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/checkpoint.pb.h"
#include "spec/ownership.h"
#include "spec/parameter_index.h"
#include "worker/comm/communicator.h"

namespace cadre {

// Flat positions that a rank owns, and where it keeps their values. flat.size() == values.size().
struct OwnedValues {
  FlatRange flat;
  std::span<float> values;
};

// Appends the owned pieces of a bucket, whose slice [slice_begin(), slice_end()) is `slice`: of the
// weights' buffer, or a state of the bucket's optimiser.
void AppendOwned(const BucketOwnership& bucket, std::span<float> slice,
                 std::vector<OwnedValues>* owned);

// What one rank has of the group's model. Over the ranks every flat position comes once; the states
// list the same ranges as the weights, in the same order.
struct CheckpointValues {
  std::vector<OwnedValues> weights;
  // By OptimizerStateNames of the run's optimiser.
  std::vector<std::vector<OwnedValues>> states;
};

struct CheckpointOptions {
  // Checkpoints' folders appear here; on rank 0's machine.
  std::string directory;
  // Newest ones of facts.run() that are kept; at least 1.
  int keep = 2;
  // Elements that are gathered at a time: 16 MiB.
  int64_t chunk = int64_t{4} << 20;
};

// Writes "<directory>/step-<facts.step()>". `facts` (looked at on rank 0): the manifest's spec,
// step, version, cursor, seed, run and optimizer.updates; the rest is filled in here.
// Errors: those of rank 0's file system, such as ResourceExhausted for a full disk, and then the
// checkpoints that were there are as they were; those of the communicator, and then the group is
// dead; Internal for ranks that own too much or too little.
absl::Status SaveCheckpoint(const CheckpointOptions& options, const ParameterIndex& index,
                            v1::CheckpointManifest facts, const CheckpointValues& values,
                            Communicator& group);

struct LoadedCheckpoint {
  // The folder or file that was read.
  std::string path;
  // Nothing: weights alone were read, and the states left as they were.
  std::optional<v1::CheckpointManifest> manifest;
};

// Overwrites the values with those of `from`: a checkpoint's folder, a directory of checkpoints
// (its newest), or a *.safetensors file (weights alone). `optimizer` is the run's. Errors, the same
// on every rank and naming the one whose it was: NotFound, ... for files; InvalidArgument for a
// broken file, another model (what differs is listed) or another kind of optimiser; DataLoss for
// values that are not those that were saved. Values are then unspecified.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& from,
                                                const ParameterIndex& index,
                                                const v1::Optimizer& optimizer,
                                                const CheckpointValues& values,
                                                Communicator& group);

}  // namespace cadre
