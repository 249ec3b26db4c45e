#include "coordinator/prediction_blame.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {
namespace {

// Measured less predicted.
struct Difference {
  double predicted = 0;
  double measured = 0;
  double value() const { return measured - predicted; }
};

std::string Figures(const char* what, const Difference& off) {
  return absl::StrCat(what, " took ", InMilliseconds(off.measured), ", ",
                      InMilliseconds(off.predicted), " predicted");
}

// What is left of a step when moving and waiting are taken out.
double OwnWork(const v1::StepTimes& times) {
  return std::max(0.0, times.step() - times.moves() - times.exposed());
}

// Of `whole`, as much as `part` explains: of the same sign, and no more than it.
double Explained(double whole, double part) {
  if (whole * part <= 0) return 0;
  return whole > 0 ? std::min(whole, part) : std::max(whole, part);
}

std::string ComputeInWords(const v1::StepTimes& predicted, const v1::StepTimes& measured) {
  const Difference layers{predicted.compute(), measured.compute()};
  const Difference rest{OwnWork(predicted) - predicted.compute(),
                        OwnWork(measured) - measured.compute()};
  // Loading samples, say; or threads that wait for cores.
  if (std::abs(rest.value()) > std::abs(layers.value())) {
    return absl::StrCat("compute: ", Figures("what a step does outside of its layers", rest));
  }
  return absl::StrCat("compute: ", Figures("layers", layers));
}

}  // namespace

double PredictionError(const v1::StepTimes& predicted, const v1::StepTimes& measured) {
  if (!(measured.step() > 0)) return 0;
  return predicted.step() / measured.step() - 1;
}

std::string PredictionBlame(const v1::StepTimes& predicted, const v1::StepTimes& measured) {
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
  if (compute >= link && compute >= overlap) return ComputeInWords(predicted, measured);
  if (overlap > link) return absl::StrCat("overlap: ", Figures("waiting", exposed));
  const bool by_moves = sign * moves.value() > sign * carried;
  return absl::StrCat("link: ", by_moves ? Figures("moves", moves)
                                         : Figures("collectives and updates", collectives));
}

std::string InMilliseconds(double seconds) {
  const double ms = seconds * 1e3;
  if (ms >= 99.95) return absl::StrFormat("%.0f ms", ms);
  if (ms >= 9.995) return absl::StrFormat("%.1f ms", ms);
  if (ms >= 0.005) return absl::StrFormat("%.2f ms", ms);
  return absl::StrFormat("%.3g ms", std::max(0.0, ms));
}

}  // namespace cadre
