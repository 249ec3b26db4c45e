// Holds a prediction against the clock, and says what was wrong with it.
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

// A prediction that is further off than this says why.
inline constexpr double kPredictionBound = 0.2;

// Predicted over measured step, less one; 0 where there is no measured step.
double PredictionError(const v1::StepTimes& predicted, const v1::StepTimes& measured);

// Empty within the bound. Otherwise which input explains most of the difference, with its figures,
// such as "link: collectives took 41 ms, 12 ms predicted":
//
//   compute   what the rank's own thread did besides moving and waiting
//   link      moves, and of the waiting as much as collectives and updates were off
//   overlap   the rest of the waiting: collectives took what they should and were not hidden
//
// What pulls the other way is never blamed.
std::string PredictionBlame(const v1::StepTimes& predicted, const v1::StepTimes& measured);

// "41.2 ms", with three digits that count; "0 ms".
std::string InMilliseconds(double seconds);

}  // namespace cadre
