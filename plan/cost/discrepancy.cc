#include "plan/cost/discrepancy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/counted_noun.h"

namespace cadre {
namespace {

// Weight of the newest round in the smoothed mean.
constexpr double kNewestWeight = 0.1;
// In the first one or two rounds the learning rate is often still warming up.
constexpr uint32_t kMinRounds = 3;
// The bound, and the share of G - 1 above which there is hardly any signal.
constexpr double kMaxDiscrepancy = 1;
constexpr double kNoiseShare = 0.9;
// Below this, the groups learn the same; their sums are of floats.
constexpr double kSameProgress = 1e-9;
// The bounds for the interval omit constants, and hold for long training: an interval is called too
// long only beyond this multiple, in runs of at least so many rounds.
constexpr uint32_t kIntervalMargin = 4;
constexpr uint32_t kMinRoundsOfRun = 10;
// Beyond this, the number of groups counts as unlimited.
constexpr double kUnlimited = 1e6;

// Rounds down, to at least 1. The factor keeps a value that is whole except for rounding errors.
int64_t RoundDown(double value) { return std::max<int64_t>(1, std::floor(value * (1 + 1e-12))); }

// The exponent of H in the bound.
double PowerOf(IntervalBound bound) { return bound == IntervalBound::kYu ? 4 : 2; }

struct Bounds {
  // The minimum of MaxGroups and the bound for the interval; empty: unlimited or unknown.
  std::optional<uint32_t> max_groups;
  // The maximum number of steps between averages; empty: unknown.
  std::optional<uint32_t> max_steps;
};

std::string StepsText(uint32_t steps) {
  return steps == 1 ? std::string("every step") : absl::StrCat("every ", steps, " steps");
}

// Text that names what may be increased; empty: neither groups nor steps between averages.
std::string RaiseText(const DiscrepancyView& view, const Bounds& bounds) {
  std::vector<std::string> ways;
  if (!bounds.max_groups) {
    ways.push_back("more groups");
  } else if (*bounds.max_groups > view.groups) {
    ways.push_back(absl::StrCat("up to ", *bounds.max_groups, " groups"));
  }
  if (bounds.max_steps && *bounds.max_steps > view.every_steps) {
    ways.push_back(absl::StrCat("averages as seldom as ", StepsText(*bounds.max_steps)));
  }
  return absl::StrJoin(ways, ", or ");
}

std::string LowerText(const DiscrepancyView& view, uint32_t max_groups) {
  return absl::StrCat("the groups diverge too far: use ", Counted(max_groups, "group"), ", or ",
                      view.every_steps > 1
                          ? absl::StrCat("average more often than ", StepsText(view.every_steps))
                          : std::string("a larger batch in each"));
}

std::string NoiseText(const DiscrepancyView& view) {
  return absl::StrCat("the progress of the groups is mostly noise: use fewer groups, ",
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

bool IsTooSeldom(const DiscrepancyView& view, uint32_t max_steps) {
  return view.every_steps > uint64_t{kIntervalMargin} * max_steps &&
         view.total_steps / view.every_steps >= kMinRoundsOfRun;
}

Bounds BoundsFor(const DiscrepancyView& view) {
  Bounds bounds{.max_groups = MaxGroups(NoiseOverSignal(view.gamma, view.groups))};
  if (view.total_steps == 0) return bounds;
  bounds.max_steps =
      MaxStepsBetweenAverages(view.total_steps, view.groups, IntervalBound::kWangJoshi);
  const uint32_t by_interval =
      MaxGroupsForInterval(view.total_steps, view.every_steps, IntervalBound::kWangJoshi);
  bounds.max_groups = std::min(bounds.max_groups.value_or(by_interval), by_interval);
  return bounds;
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
  return RoundDown(max_groups);
}

int64_t MaxStepsBetweenAverages(double steps, int64_t groups, IntervalBound bound) {
  const double g = groups;
  return RoundDown(std::pow(steps / (g * g * g), 1 / PowerOf(bound)));
}

int64_t MaxGroupsForInterval(double steps, int64_t every_steps, IntervalBound bound) {
  return RoundDown(std::cbrt(steps / std::pow(every_steps, PowerOf(bound))));
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

std::string AdviceFor(const DiscrepancyView& view) {
  if (view.rounds < kMinRounds) {
    return absl::StrCat("too early for advice, after ", view.rounds, " of ", kMinRounds, " rounds");
  }
  if (view.gamma < kSameProgress) {
    return "the groups agree exactly: they learn the same, so that neither more groups nor another "
           "interval makes a difference";
  }
  const Bounds bounds = BoundsFor(view);
  if (view.gamma > kMaxDiscrepancy && view.gamma >= kNoiseShare * (view.groups - 1)) {
    return NoiseText(view);
  }
  if (view.gamma > kMaxDiscrepancy) return LowerText(view, bounds.max_groups.value_or(1));
  if (bounds.max_steps && IsTooSeldom(view, *bounds.max_steps)) {
    return SeldomText(view, *bounds.max_steps);
  }
  const std::string more = RaiseText(view, bounds);
  if (!more.empty()) return absl::StrCat("the groups agree: ", more, " may be tried");
  return "the groups agree enough, but neither more groups nor averaging more seldom is advised";
}

}  // namespace cadre
