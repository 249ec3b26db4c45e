#include "coordinator/run/claims.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "model/opaque.h"
#include "model/training_metrics.h"

namespace cadre {
namespace {

// The last step that a contribution to the round after the newest version may have, and the most
// steps that it may consist of: with overlap, it includes those that the group trained while the
// round before was exchanged.
struct Bounds {
  uint64_t step;
  uint64_t steps;
};

Bounds BoundsOf(const v1::RunRecord& run) {
  const v1::Averaging& averaging = run.spec().averaging();
  uint64_t step = uint64_t{BoundaryAfter(run, run.step())} + averaging.max_solo_steps();
  if (const uint32_t total = TotalSteps(run)) step = std::min(step, uint64_t{total});
  return {.step = step,
          .steps = step - std::min<uint64_t>(step, run.step()) + averaging.overlap().steps()};
}

// The numbers of programs, whose labels the coordinator does not know: no sum of them overflows.
constexpr uint64_t kMaxLabelsPerSample = 1 << 20;

uint64_t MaxLabelsPerSample(const v1::Model& model) {
  if (model.has_opaque()) return kMaxLabelsPerSample;
  return std::max<uint64_t>(1, TokensPerSample(model));
}

}  // namespace

std::string WhyImpossible(const v1::RunRecord& run, const v1::Contributed& contributed) {
  // The first values of the run, before the first step.
  if (BeginsWithGroupValues(run.spec()) && contributed.round() == 1) {
    const bool first = contributed.samples() == 1 && contributed.step() == 0;
    return first ? "" : "the first values of the run have no steps";
  }
  if (contributed.round() == 0) return "it names no round";
  if (contributed.step() == 0) return "it has no steps";
  if (contributed.samples() == 0) return "it has no samples, and so no weight";
  if (!std::isfinite(contributed.rate()) || contributed.rate() < 0) {
    return absl::StrCat("it claims a learning rate of ", contributed.rate());
  }
  if (!Averages(run.spec())) {
    const uint32_t total = TotalSteps(run);
    if (total == 0 || contributed.step() <= total) return "";
    return absl::StrCat("it claims step ", contributed.step(), ", and the run has ", total);
  }
  if (contributed.round() != run.version() + 1 || contributed.base_version() != run.version()) {
    return "";
  }
  if (contributed.step() <= run.step()) {
    return absl::StrCat("it claims step ", contributed.step(), ", and version ", run.version(),
                        " has step ", run.step());
  }
  const Bounds bounds = BoundsOf(run);
  if (contributed.step() > bounds.step) {
    return absl::StrCat("it claims step ", contributed.step(), ", and the round has steps up to ",
                        bounds.step);
  }
  const uint64_t samples = bounds.steps * run.spec().batch_per_group();
  if (contributed.samples() <= samples) return "";
  return absl::StrCat("it claims ", contributed.samples(), " samples, and the round has at most ",
                      samples, " for a group");
}

std::string WhyImpossible(const v1::RunRecord& run, const v1::Evaluated& evaluated) {
  if (evaluated.begin() > evaluated.end() || evaluated.end() > run.test_samples()) {
    return absl::StrCat("it claims results for samples ", evaluated.begin(), " to ",
                        evaluated.end(), ", and the run has ", run.test_samples());
  }
  const uint64_t samples = evaluated.end() - evaluated.begin();
  if (evaluated.labels() < samples) {
    return absl::StrCat("fewer labels than samples: ", evaluated.labels(), " for ", samples);
  }
  if (const uint64_t labels = samples * MaxLabelsPerSample(run.spec().model());
      evaluated.labels() > labels) {
    return absl::StrCat("it claims ", evaluated.labels(), " labels, and the samples have at most ",
                        labels);
  }
  if (evaluated.correct() <= evaluated.labels()) return "";
  return absl::StrCat("more correct answers than labels: ", evaluated.correct(), " of ",
                      evaluated.labels());
}

}  // namespace cadre
