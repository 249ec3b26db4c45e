#include "plan/cost/discrepancy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/counted_noun.h"
#include "plan/cost/averaging_interval.h"

namespace cadre {
namespace {

// Weight of the newest round in the smoothed mean.
constexpr double kNewestWeight = 0.1;
// In the first one or two rounds the learning rate is often still warming up.
constexpr uint32_t kMinRounds = 3;
// The bound, and the share of G - 1 above which there is hardly any signal.
constexpr double kMaxDiscrepancy = 1;
constexpr double kNoiseShare = 0.9;
// Beyond this, the number of groups counts as unlimited.
constexpr double kUnlimited = 1e6;

std::string StepsText(uint32_t steps) {
  return steps == 1 ? std::string("every step") : absl::StrCat("every ", steps, " steps");
}

// Text that names what may be increased; empty: neither groups nor steps between averages.
std::string RaiseText(const DiscrepancyView& view, const DiscrepancyOutlook& outlook) {
  std::vector<std::string> ways;
  if (!outlook.max_groups) {
    ways.push_back("more groups");
  } else if (*outlook.max_groups > view.groups) {
    ways.push_back(absl::StrCat("up to ", *outlook.max_groups, " groups"));
  }
  if (outlook.max_steps && *outlook.max_steps > view.every_steps) {
    ways.push_back(absl::StrCat("averages as seldom as ", StepsText(*outlook.max_steps)));
  }
  return absl::StrJoin(ways, ", or ");
}

std::string LowerText(const DiscrepancyView& view, uint32_t max_groups) {
  return absl::StrCat("the groups drift too far apart: use ", Counted(max_groups, "group"), ", or ",
                      view.every_steps > 1
                          ? absl::StrCat("average more often than ", StepsText(view.every_steps))
                          : std::string("a larger batch in each"));
}

std::string NoiseText(const DiscrepancyView& view) {
  return absl::StrCat("the groups share hardly more than noise: use fewer groups, ",
                      view.every_steps > 1 ? absl::StrCat("average more often than ",
                                                          StepsText(view.every_steps), ", ")
                                           : std::string(),
                      "a larger batch or a lower rate");
}

std::string SeldomText(const DiscrepancyView& view, uint32_t max_steps) {
  return absl::StrCat("averages come too seldom for ", view.total_steps,
                      " steps in all: average at least ", StepsText(max_steps),
                      ", or use fewer groups");
}

// Sets the bounds on groups and on steps between averages.
void AddBounds(const DiscrepancyView& view, DiscrepancyOutlook& outlook) {
  outlook.max_groups = MaxGroups(NoiseOverSignal(view.gamma, view.groups));
  if (view.total_steps == 0) return;
  outlook.max_steps =
      MaxStepsBetweenAverages(view.total_steps, view.groups, IntervalBound::kWangJoshi);
  const uint32_t by_interval =
      MaxGroupsForInterval(view.total_steps, view.every_steps, IntervalBound::kWangJoshi);
  outlook.max_groups = std::min(outlook.max_groups.value_or(by_interval), by_interval);
}

}  // namespace

double DiscrepancyOf(double variance, double displacement) {
  const bool known =
      std::isfinite(variance) && variance >= 0 && std::isfinite(displacement) && displacement > 0;
  return known ? variance / displacement : std::numeric_limits<double>::quiet_NaN();
}

double ExpectedDiscrepancy(double signal, double noise, double groups) {
  return noise * (1 - 1 / groups) / (signal + noise / groups);
}

double NoiseOverSignal(double gamma, double groups) {
  const double left = groups - 1 - gamma;
  return left > 0 ? groups * gamma / left : std::numeric_limits<double>::infinity();
}

std::optional<uint32_t> MaxGroups(double noise_over_signal) {
  // r (1 - 1/G) <= 1 + r/G, that is G (r - 1) <= 2 r.
  if (noise_over_signal <= 1) return std::nullopt;
  if (std::isinf(noise_over_signal)) return 2;
  const double max_groups = 2 * noise_over_signal / (noise_over_signal - 1);
  if (max_groups >= kUnlimited) return std::nullopt;
  // The tolerance prevents rounding from excluding a group for a gamma of exactly 1.
  const uint32_t whole = std::floor(max_groups * (1 + 1e-12));
  return whole;
}

void SmoothedDiscrepancy::Add(double variance, double displacement) {
  ++rounds;
  // The first rounds have equal weights.
  const double weight = std::max(kNewestWeight, 1.0 / rounds);
  share += weight * (variance / (variance + displacement) - share);
}

double SmoothedDiscrepancy::Value() const {
  return rounds == 0 ? std::numeric_limits<double>::quiet_NaN() : share / (1 - share);
}

DiscrepancyOutlook OutlookOf(const DiscrepancyView& view) {
  DiscrepancyOutlook outlook;
  if (view.rounds < kMinRounds) {
    outlook.text =
        absl::StrCat("too early to say, after ", view.rounds, " of ", kMinRounds, " rounds");
    return outlook;
  }
  AddBounds(view, outlook);
  if (view.gamma > kMaxDiscrepancy && view.gamma >= kNoiseShare * (view.groups - 1)) {
    outlook.advice = DiscrepancyAdvice::kNoise;
    outlook.text = NoiseText(view);
  } else if (view.gamma > kMaxDiscrepancy) {
    outlook.advice = DiscrepancyAdvice::kLower;
    outlook.text = LowerText(view, outlook.max_groups.value_or(1));
  } else if (outlook.max_steps && view.every_steps > *outlook.max_steps) {
    outlook.advice = DiscrepancyAdvice::kLower;
    outlook.text = SeldomText(view, *outlook.max_steps);
  } else {
    const std::string more = RaiseText(view, outlook);
    outlook.advice = more.empty() ? DiscrepancyAdvice::kKeep : DiscrepancyAdvice::kRaise;
    outlook.text = more.empty() ? "the groups agree enough, but neither more groups nor averaging "
                                  "more seldom is advised"
                                : absl::StrCat("the groups agree: ", more, " may be tried");
  }
  return outlook;
}

}  // namespace cadre
