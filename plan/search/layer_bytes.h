// Upper bounds on the memory of a layer. They depend only on how this layer is split, so a plan's
// memory is a sum over layers.
//
//   parameters   weights, gradients (twice with micro-batches), the owned part of the state; unless
//                the device has its own memory, the exchange of the owned part with the aggregators
//                (in plans with placed layers a rank may exchange more than it owns)
//   activations  what backward reads: the input with its halo, the output, saved values
//                on GPUs, if the run states this device: scores of attention, padding of the rows
//                of the loss's scores, and the batches that are uploaded
//   transient    the larger of input and output, a second time: for buffers that exist only while
//                the layer runs, such as a received input or gradient and packed messages; none of
//                the loss on one rank, since its gradient overwrites the scores; of scores that
//                the host takes in chunks, a chunk
//
// plan/memory.h computes the exact memory of one rank, which is less, since buffers share memory.
//
// Pure functions; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/graph.h"
#include "model/op_indices.h"
#include "plan/recomputation.h"
#include "plan/search/compact_layout.h"
#include "plan/search/plan_problem.h"
#include "tensor/mesh.h"

namespace cadre {

// Samples of the largest micro-batch.
int64_t LargestMicroBatch(const PlanProblem& problem);
// The sizes that its micro-batches have: one, or two that differ by one.
std::vector<int64_t> MicroBatchSizes(const PlanProblem& problem);

// Weights, gradients and state of a parameter. A rank holds `elements` of it; `owners` ranks,
// including this one, divide the ownership of these elements.
int64_t ParameterBytes(const PlanProblem& problem, int64_t elements, int64_t owners);

// Whether the layer is a ReLU that plans usually fuse with a batch norm (plan/fusion.cc).
bool FollowsNorm(const Graph& graph, const GraphLayer& layer);

// The number of parts of each dimension, samples first.
using Parts = std::array<int64_t, kMaxDimensions>;
// For each micro-batch in flight (plan/pipeline.h), or for an evaluation batch if that needs more.
// `inputs`: one entry for each input, or one for all. `heads`: parts of an attention's heads.
// `again`: an estimate if the layer is in a block (RecomputedLayer::share_in_memory).
int64_t ActivationBytes(const PlanProblem& problem, const GraphLayer& layer,
                        std::span<const Parts> inputs, const Parts& output, int64_t heads,
                        const RecomputedLayer& again, int in_flight = 1);

// Parameters of a layer, and its activations.
int64_t LayerBytes(const PlanProblem& problem, const Mesh& mesh, int layer,
                   const LayerLayouts& layouts, const RecomputedLayer& again = {},
                   int in_flight = 1);

}  // namespace cadre
