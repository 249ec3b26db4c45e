// Initial weights (version 0): a pure function of the run's seed and the position of the weight, so
// every process computes the part that it needs.
//
// Weights are normal with variance 2 / fan_in (He et al. 2015, for layers followed by ReLU), 1 /
// fan_in in attention and in the last layer with parameters, and 0.02^2 in embeddings; biases are
// zero, norms start as the identity.
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>
#include <span>

#include "model/parameter_index.h"

namespace cadre {

// Fills `out` with the values at flat positions begin, begin + 1, ...
// Requires: 0 <= begin, begin + out.size() <= index.size().
void FillInitialValues(const ParameterIndex& index, uint64_t seed, int64_t begin,
                       std::span<float> out);

}  // namespace cadre
