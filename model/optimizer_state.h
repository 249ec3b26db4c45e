// The names of the state tensors of each optimizer. Each is an fp32 tensor of the shape of its
// parameter. Used by the planner (memory), by workers (slices) and by checkpoints (names).
//
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// "sgd", "adamw" or "lars". The default is SGD.
absl::string_view OptimizerKind(const v1::Optimizer& optimizer);

// {"momentum"} or {"m", "v"}, in the order of SliceOptimizer.
std::vector<std::string> OptimizerStateNames(const v1::Optimizer& optimizer);

}  // namespace cadre
