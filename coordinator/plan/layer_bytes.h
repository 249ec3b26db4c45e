// What a layer keeps and uses in memory as it is cut, as an upper bound that depends on the layer's
// own cut alone, so that a plan's memory is a sum.
//
//   parameters   weights, gradients (twice with micro-batches), the owned part of the state
//   activations  what backward looks at: the input with its halo, the output, or what was noted
//   passing      once more the larger of input and output: for what is there while the layer is at
//                work, an input or a gradient on its way, packed messages, the other's gradient
//
// spec/memory.h counts what buffers share, which is less, for one rank.
//
// Pure functions; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "coordinator/plan/compact_layout.h"
#include "coordinator/plan/plan_problem.h"
#include "spec/graph.h"
#include "spec/op_indices.h"
#include "tensor/mesh.h"

namespace cadre {

// The larger part of `elements` cut into `parts`.
inline int64_t LargestPart(int64_t elements, int64_t parts) {
  return (elements + parts - 1) / parts;
}

// Samples of the largest micro-batch.
inline int64_t SamplesAtOnce(const PlanProblem& problem) {
  return LargestPart(problem.batch, problem.micro_batches);
}

// Of a parameter's elements that a rank holds and that `owners` own a part of each.
int64_t ParameterWords(const PlanProblem& problem, int64_t elements, int64_t owners);

// Into how many parts each dimension is cut, samples first.
using Parts = std::array<int64_t, kMostDimensions>;
// `inputs`: one for each input, or one for all. `heads`: parts of an attention's heads.
int64_t ActivationWords(const PlanProblem& problem, const GraphLayer& layer,
                        std::span<const Parts> inputs, const Parts& output, int64_t heads);

// All of it.
int64_t LayerBytes(const PlanProblem& problem, const Mesh& mesh, int layer,
                   const LayerLayouts& layouts);

}  // namespace cadre
