// The states of the averaging between groups that checkpoints contain. Each is an fp32 tensor of
// the shape of its parameter, for parameters that are trained.
//
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// What codes have left out of the contributions of the group that wrote the checkpoint.
inline constexpr char kContributionResidual[] = "contribution_residual";

// The states that the aggregators store with each version, in their order: those of the outer
// optimizer, then the residual of coded versions. An empty name: no checkpoint contains the state.
std::vector<std::string> ShardStateNames(const v1::Averaging& averaging);

}  // namespace cadre
