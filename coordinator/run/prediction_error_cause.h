// Compares a predicted step time with the measured one and names the main cause of the error.
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

// Larger relative errors are reported with a cause.
inline constexpr double kPredictionBound = 0.2;

// predicted / measured - 1; 0 without a measured step time.
double PredictionError(const v1::StepTimes& predicted, const v1::StepTimes& measured);

// Empty if the error is within the bound. Otherwise the input of the prediction that explains most
// of the difference, with its values, such as "link: collectives took 41 ms, 12 ms predicted":
//
//   compute   the rank's own thread, without moves (exchanges of activations) and waiting
//   link      moves, and the part of the waiting explained by the error of collectives and updates
//   overlap   the rest of the waiting: collectives took the predicted time but were not hidden
//
// An input with an error of the opposite sign is never the cause.
std::string PredictionErrorCause(const v1::StepTimes& predicted, const v1::StepTimes& measured);

// Text with three significant digits: "41.2 ms"; "0 ms" for zero.
std::string MillisecondsToText(double seconds);

}  // namespace cadre
