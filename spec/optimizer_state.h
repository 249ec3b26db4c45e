// What an optimiser remembers between steps: so many fp32 tensors of the shape of each parameter.
// Planner (memory), engine (slices) and checkpoints (names) agree on it here.
//
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// "sgd", "adamw" or "lars". An optimiser without a kind is plain SGD.
const char* OptimizerKind(const v1::Optimizer& optimizer);

// {"momentum"} or {"m", "v"}, in the order in which SliceOptimizer keeps them.
std::vector<std::string> OptimizerStateNames(const v1::Optimizer& optimizer);

}  // namespace cadre
