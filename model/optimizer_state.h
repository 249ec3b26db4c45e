// Facts of each optimizer that the planner (memory, order of updates), workers (slices) and
// checkpoints (names) read.
//
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The name of its field in a run file, such as "adamw". The default is "sgd".
absl::string_view OptimizerKind(const v1::Optimizer& optimizer);

// The names of the state tensors, each an fp32 tensor of the shape of its parameter, in the order
// of kernels/optimizer_step.h, such as {"m", "v"}.
std::vector<std::string> OptimizerStateNames(const v1::Optimizer& optimizer);

// Whether the rate of a tensor depends on the norms of that tensor. Its update must then wait for
// the gradients of the whole tensor, as all updates must with clipping by the global norm.
bool UsesTensorNorms(const v1::Optimizer& optimizer);

}  // namespace cadre
