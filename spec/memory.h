// What a rank's part of a run costs in memory, worked out from the plan alone. The engine counts
// what it really holds under the same heads; the status shows both.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "tensor/dtype.h"

namespace cadre {

// Samples of the largest micro-batch of a step.
int64_t MicroBatchSamples(const v1::RunSpec& spec);
// The sizes that a step's micro-batches have: one, or two that differ by a sample.
std::vector<int64_t> MicroBatchSizes(const v1::RunSpec& spec);

// In what the run's activations are computed.
DType ActivationType(const v1::RunSpec& spec);

// Bytes of a weight as ranks hold it: fp32, and where products take bf16 a copy in it.
int64_t BytesPerWeight(DType activations);

// Bytes by kind:
//   weights      the local shards; with precision BF16 also their copies in bf16
//   gradients    the same again, twice with micro-batches
//   optimizer    the owned slices, once for every state tensor of the optimiser
//   activations  the block of memory of the training tape (spec/tape.h)
//   buffers      the largest packed messages, both ways, and the largest piece in between of any
//   move; on CUDA devices also the batches on their way there, two as they come and one as it is
//   computed in
// Not among them, and small beside them: a mebibyte for each communicator that reduces, what the
// kernels and the libraries below them keep as scratch, and the loader's batches ahead.
// `device`: what the group computes on, which a spec may leave open.
// Requires: CheckPlan is OK; 0 <= rank < plan.mesh.ranks().
v1::MemoryUse PlannedMemory(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, const Plan& plan, int rank,
                            v1::ComputeDevice device);

}  // namespace cadre
