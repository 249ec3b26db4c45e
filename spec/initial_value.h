// Version 0 of a model: every weight as a pure function of the run's seed and the weight's place.
// Whoever needs a part of it computes it, whatever the part; nobody has to send it.
//
// What spec/graph.h says of a parameter decides. Weights are normal with variance 2 / fan_in (He et
// al. 2015, for layers followed by ReLU), those of attention and of the last layer with parameters
// 1 / fan_in, those of embeddings 0.02^2; biases are zero, norms begin as the identity.
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>
#include <span>

#include "spec/parameter_index.h"

namespace cadre {

// Fills `out` with the values at flat positions begin, begin + 1, ...
// Requires: 0 <= begin, begin + out.size() <= index.size().
void FillInitialValues(const ParameterIndex& index, uint64_t seed, int64_t begin,
                       std::span<float> out);

}  // namespace cadre
