// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Rate of step `step` (from 0) of `total_steps`.
//
// base_rate, times the warm-up factor (step + 1) / warmup_steps while that is below 1, times the
// decay factor: factor ^ floor(step / every_steps) for steps; for cosine and polynomial a curve
// from 1 at the end of warm-up to final_fraction at total_steps, constant after that.
// Requires: a valid schedule (model/validate.h); step >= 0.
float RateAt(const v1::Schedule& schedule, int64_t step, int64_t total_steps);

}  // namespace cadre
