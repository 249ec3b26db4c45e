// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The learning rate of step `step` (from 0) of `total_steps`.
//
// The rate is base_rate, times the warm-up factor (step + 1) / warmup_steps while that is below 1,
// times the decay factor. The decay factor of a `steps` schedule is factor ^ floor(step /
// every_steps). That of cosine and polynomial schedules is a curve from 1 at the end of warm-up to
// final_fraction at total_steps, and constant after that.
// Requires: a valid schedule (model/validate.h); step >= 0.
float RateAt(const v1::Schedule& schedule, int64_t step, int64_t total_steps);

}  // namespace cadre
