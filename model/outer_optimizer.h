// The outer optimizer of a run (run.proto, OuterOptimizer): its settings and the size of its state.
//
// Thread-safe (pure functions).
#pragma once

#include <optional>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The run's outer optimizer with all defaults filled in; nothing if the mean is the version.
std::optional<v1::OuterOptimizer> OuterOptimizerOf(const v1::Averaging& averaging);

// Number of state values for each value of the model. Requires: all fields are set.
int OuterStates(const v1::OuterOptimizer& optimizer);

// The optimizer's learning rate and momentum. Requires: all fields are set.
float OuterRate(const v1::OuterOptimizer& optimizer);
float OuterMomentum(const v1::OuterOptimizer& optimizer);

}  // namespace cadre
