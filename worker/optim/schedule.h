// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Rate of step `step` (from 0) of `total_steps`.
//
// base_rate, times the warm-up factor (step + 1) / warmup_steps while that is below 1, times the
// decay: factor ^ floor(step / every_steps), or half a cosine from 1 to final_fraction over the
// steps after warm-up. Requires: a valid schedule (spec/validate.h).
float RateAt(const v1::Schedule& schedule, uint32_t step, uint32_t total_steps);

}  // namespace cadre
