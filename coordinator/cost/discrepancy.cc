#include "coordinator/cost/discrepancy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cost/averaging_interval.h"

namespace cadre {
namespace {

// Of the newest round, in the mean over rounds.
constexpr double kNewestWeight = 0.1;
// Rounds that say something: in the first one or two the rate is often still warming up.
constexpr uint32_t kFewestRounds = 3;
// The bound, and the share of G - 1 from which on there is hardly any signal.
constexpr double kMostDiscrepancy = 1;
constexpr double kNoiseShare = 0.9;
// So many groups are as good as any number.
constexpr double kAnyNumber = 1e6;

// "2 groups", "1 group".
std::string GroupsText(uint32_t groups) {
  return absl::StrCat(groups, groups == 1 ? " group" : " groups");
}

std::string StepsText(uint32_t steps) {
  return steps == 1 ? std::string("every step") : absl::StrCat("every ", steps, " steps");
}

// What may be raised; empty: nothing.
std::string RaiseText(const DiscrepancyView& view, const DiscrepancyOutlook& outlook) {
  std::vector<std::string> ways;
  if (!outlook.most_groups) {
    ways.push_back("more groups");
  } else if (*outlook.most_groups > view.groups) {
    ways.push_back(absl::StrCat("up to ", *outlook.most_groups, " groups"));
  }
  if (outlook.most_steps && *outlook.most_steps > view.every_steps) {
    ways.push_back(absl::StrCat("averages as seldom as ", StepsText(*outlook.most_steps)));
  }
  return absl::StrJoin(ways, ", or ");
}

std::string LowerText(const DiscrepancyView& view, uint32_t most_groups) {
  return absl::StrCat("the groups drift too far apart: use ", GroupsText(most_groups), ", or ",
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

std::string SeldomText(const DiscrepancyView& view, uint32_t most_steps) {
  return absl::StrCat("averages come too seldom for ", view.total_steps,
                      " steps in all: average at least ", StepsText(most_steps),
                      ", or use fewer groups");
}

// Bounds on the groups and on the steps between averages.
void Bound(const DiscrepancyView& view, DiscrepancyOutlook& outlook) {
  outlook.most_groups = MostGroups(NoiseOverSignal(view.gamma, view.groups));
  if (view.total_steps == 0) return;
  outlook.most_steps = static_cast<uint32_t>(
      MostStepsBetweenAverages(view.total_steps, view.groups, IntervalBound::kWangJoshi));
  const auto by_interval = static_cast<uint32_t>(
      MostGroupsOfInterval(view.total_steps, view.every_steps, IntervalBound::kWangJoshi));
  outlook.most_groups = std::min(outlook.most_groups.value_or(by_interval), by_interval);
}

}  // namespace

double DiscrepancyOf(double spread, double moved) {
  const bool known = std::isfinite(spread) && spread >= 0 && std::isfinite(moved) && moved > 0;
  return known ? spread / moved : std::numeric_limits<double>::quiet_NaN();
}

double ExpectedDiscrepancy(double signal, double noise, double groups) {
  return noise * (1 - 1 / groups) / (signal + noise / groups);
}

double NoiseOverSignal(double gamma, double groups) {
  const double left = groups - 1 - gamma;
  return left > 0 ? groups * gamma / left : std::numeric_limits<double>::infinity();
}

std::optional<uint32_t> MostGroups(double noise_over_signal) {
  // r (1 - 1/G) <= 1 + r/G, that is G (r - 1) <= 2 r.
  if (noise_over_signal <= 1) return std::nullopt;
  if (std::isinf(noise_over_signal)) return 2;
  const double most = 2 * noise_over_signal / (noise_over_signal - 1);
  if (most >= kAnyNumber) return std::nullopt;
  // A gamma of exactly 1 must not lose its group to rounding.
  return static_cast<uint32_t>(std::floor(most * (1 + 1e-12)));
}

void SmoothedDiscrepancy::Add(double spread, double moved) {
  ++rounds;
  // The first rounds have a plain mean.
  const double weight = std::max(kNewestWeight, 1.0 / rounds);
  share += weight * (spread / (spread + moved) - share);
}

double SmoothedDiscrepancy::Value() const {
  return rounds == 0 ? std::numeric_limits<double>::quiet_NaN() : share / (1 - share);
}

DiscrepancyOutlook OutlookOf(const DiscrepancyView& view) {
  DiscrepancyOutlook outlook;
  if (view.rounds < kFewestRounds) {
    outlook.text =
        absl::StrCat("too early to say, after ", view.rounds, " of ", kFewestRounds, " rounds");
    return outlook;
  }
  Bound(view, outlook);
  if (view.gamma > kMostDiscrepancy && view.gamma >= kNoiseShare * (view.groups - 1)) {
    outlook.advice = DiscrepancyAdvice::kNoise;
    outlook.text = NoiseText(view);
  } else if (view.gamma > kMostDiscrepancy) {
    outlook.advice = DiscrepancyAdvice::kLower;
    outlook.text = LowerText(view, outlook.most_groups.value_or(1));
  } else if (outlook.most_steps && view.every_steps > *outlook.most_steps) {
    outlook.advice = DiscrepancyAdvice::kLower;
    outlook.text = SeldomText(view, *outlook.most_steps);
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
