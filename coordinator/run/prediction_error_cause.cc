// The step time of a rank is its own work (layers, updates, loading), plus moves, plus the time for
// which it waits for collectives (`exposed`). The error of the prediction is divided the same way.
// An error in the waiting time is attributed to the link to the extent that the collectives
// themselves took longer than predicted; the rest means that they overlapped less than predicted.
#include "coordinator/run/prediction_error_cause.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {
namespace {

// A predicted and a measured time; value() is measured - predicted.
struct Difference {
  double predicted = 0;
  double measured = 0;
  double value() const { return measured - predicted; }
};

std::string TimesToText(const char* what, const Difference& difference) {
  return absl::StrCat(what, " took ", MillisecondsToText(difference.measured), ", ",
                      MillisecondsToText(difference.predicted), " predicted");
}

// Step time without moves and waiting.
double OwnWork(const v1::StepTimes& times) {
  return std::max(0.0, times.step() - times.moves() - times.exposed());
}

// The share of `whole` that `part` explains: `part`, limited to the range from 0 to `whole`.
double Explained(double whole, double part) {
  if (whole * part <= 0) return 0;
  return whole > 0 ? std::min(whole, part) : std::max(whole, part);
}

std::string ComputeToText(const v1::StepTimes& predicted, const v1::StepTimes& measured) {
  const Difference layers{predicted.compute(), measured.compute()};
  const Difference rest{OwnWork(predicted) - predicted.compute(),
                        OwnWork(measured) - measured.compute()};
  // For example loading samples, or threads that wait for cores.
  if (std::abs(rest.value()) > std::abs(layers.value())) {
    return absl::StrCat("compute: ", TimesToText("work outside of layers", rest));
  }
  return absl::StrCat("compute: ", TimesToText("layers", layers));
}

}  // namespace

double PredictionError(const v1::StepTimes& predicted, const v1::StepTimes& measured) {
  if (!(measured.step() > 0)) return 0;
  return predicted.step() / measured.step() - 1;
}

std::string PredictionErrorCause(const v1::StepTimes& predicted, const v1::StepTimes& measured) {
  if (std::abs(PredictionError(predicted, measured)) <= kPredictionBound) return "";
  const double sign = measured.step() > predicted.step() ? 1 : -1;
  const Difference moves{predicted.moves(), measured.moves()};
  const Difference collectives{predicted.collectives() + predicted.update(),
                               measured.collectives() + measured.update()};
  const Difference exposed{predicted.exposed(), measured.exposed()};
  const double carried = Explained(exposed.value(), collectives.value());
  const double compute = sign * (OwnWork(measured) - OwnWork(predicted));
  const double link = sign * (moves.value() + carried);
  const double overlap = sign * (exposed.value() - carried);
  if (compute >= link && compute >= overlap) return ComputeToText(predicted, measured);
  if (overlap > link) return absl::StrCat("overlap: ", TimesToText("waiting", exposed));
  const bool by_moves = sign * moves.value() > sign * carried;
  return absl::StrCat("link: ", by_moves ? TimesToText("moves", moves)
                                         : TimesToText("collectives and updates", collectives));
}

std::string MillisecondsToText(double seconds) {
  const double ms = seconds * 1e3;
  if (ms >= 99.95) return absl::StrFormat("%.0f ms", ms);
  if (ms >= 9.995) return absl::StrFormat("%.1f ms", ms);
  if (ms >= 0.005) return absl::StrFormat("%.2f ms", ms);
  return absl::StrFormat("%.3g ms", std::max(0.0, ms));
}

}  // namespace cadre
