// The memory of one rank, computed from the plan alone. Workers count their actual allocations in
// the same categories; the status of a run shows both.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/dtype.h"

namespace cadre {

// At least 1.
int MicroBatches(const v1::RunSpec& spec);
// Samples of the largest micro-batch of a step.
int64_t MicroBatchSamples(const v1::RunSpec& spec);
// The distinct sizes of a step's micro-batches: one, or two that differ by one sample.
std::vector<int64_t> MicroBatchSizes(const v1::RunSpec& spec);

// Samples of the batches in which the test split is evaluated: as many as a micro-batch has, or
// fewer if the loss samples classes, so that a rank has no more scores than in training. `samples`:
// of a micro-batch. `parts`: into which the layer that scores the classes divides them; each has at
// least one sample if there are enough. Equal on all ranks.
int64_t EvaluationSamples(const Graph& graph, int64_t samples, int64_t parts);
int64_t EvaluationSamples(const v1::RunSpec& spec, const Graph& graph, const Plan& plan);

// Bytes per weight: fp32, plus a copy in bf16 if activations are bf16.
int64_t BytesPerWeight(DType activations);

// Bytes by kind:
//   weights      the local shards; with precision BF16 also their copies in bf16
//   gradients    the same size as the fp32 weights; twice that with micro-batches
//   optimizer    the owned slices, once for every state tensor of the optimiser
//   activations  the block of memory of the training tape (plan/tape.h), for each micro-batch in
//                flight, and with several of them the memory of a pass; or the block of the
//                evaluation tape, if the loss samples classes and it is larger
//   buffers      the largest packed messages of any move in both directions, and the largest
//                intermediate result of a move; on CUDA devices also the batches being uploaded,
//                two in the type of the loader and one in the activation type, and an upper bound
//                of what coding contributions takes (worker/train/device_contribution.h)
//   exchange     in the memory of the host: plan/exchange_memory.h
// Not counted, and comparatively small: a mebibyte per communicator that reduces, scratch memory of
// kernels and libraries except that of attention on GPUs (ScoreMemory of plan/layer_memory.h), and
// the loader's prefetched batches.
// `device`: the kind of the group's devices, because a spec may not state it. `in_flight`: the
// number of micro-batches whose activations the rank keeps at a time (plan/pipeline.h).
// Requires: CheckPlan is OK; 0 <= rank < plan.mesh.ranks().
v1::MemoryUse PlannedMemory(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, const Plan& plan, int rank,
                            v1::Cluster::Device device, int in_flight);

// Bytes in the memory of the rank's device: without the exchange if that has its own memory.
int64_t DeviceBytes(const v1::MemoryUse& use, v1::Cluster::Device device);

}  // namespace cadre
