// Computes the discrepancy: how far the groups' models diverge between two averages, relative to
// the progress of their mean. Advises on the number of groups and of steps between averages.
//
// Just before averaging, with w_g the weights of the G groups, w their mean and w' the version from
// which they started:
//
//   gamma = (1/G) sum of |w_g - w|^2 / |w - w'|^2       (variance between groups / displacement)
//
// gamma is 0 if all groups make the same progress, and G - 1 if their progress is independent
// noise. If the progress of each group is a common signal of squared length s plus independent
// noise of squared length n, then the variance is n (1 - 1/G) and the displacement s + n / G, so
// that
//
//   gamma = r (1 - 1/G) / (1 + r / G),  r = n / s
//
// If gamma is at most 1, the mean has moved at least as far as the groups lie apart; up to this
// bound more groups are advised.
//
// Limit: over H steps the signal grows with H and the noise with its root, so gamma falls as H
// grows, although training gets worse. H is therefore bounded separately, by the convergence of
// local SGD (plan/cost/averaging_interval.h).
//
// Source: the practical metric of "hierarchical local SGD" (Lee, Kang, Agrawal, Choudhary, Liao,
// IEEE Big Data 2020) has not been published in full; this measure takes its place.
//
// Weights are the trained parameters as ranks contribute them, groups weighted by their samples.
// Running statistics of batch norms are averaged but not counted, because their scale is unrelated
// to that of weights. Optimiser state (momentum) is neither averaged nor counted.
//
// Thread-safe (pure functions over values).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cadre {

// gamma; NaN unless both arguments are finite, variance >= 0 and displacement > 0.
double DiscrepancyOf(double variance, double displacement);

// gamma in the model of signal and noise. Requires: groups >= 1, signal >= 0, noise >= 0, one of
// them above 0.
double ExpectedDiscrepancy(double signal, double noise, double groups);

// The r that results in this gamma; infinite for gamma >= G - 1. Requires: gamma >= 0, groups > 1.
double NoiseOverSignal(double gamma, double groups);

// The largest number of groups whose expected discrepancy is at most 1, for constant r (r falls
// with the batch of a group, and rises as the loss falls); empty: unlimited. At least 1.
std::optional<uint32_t> MaxGroups(double noise_over_signal);

// The exponentially weighted mean over rounds of the share variance / (variance + displacement);
// the newest round has a tenth of the weight. The share is in [0, 1], so that no round dominates:
// neither one in which the mean hardly moved nor an early one, in which it moved far.
struct SmoothedDiscrepancy {
  double share = 0;
  uint32_t rounds = 0;

  // Requires: DiscrepancyOf(variance, displacement) is a number.
  void Add(double variance, double displacement);
  // The mean as a discrepancy. NaN before the first round.
  double Value() const;
};

// What to change in a run.
enum class DiscrepancyAdvice {
  // Too few rounds for a conclusion.
  kTooEarly,
  // More groups, or more steps between averages, may be tried.
  kRaise,
  // Neither more groups nor more steps.
  kKeep,
  // Fewer groups, or fewer steps.
  kLower,
  // The same as kLower, but urgent: the discrepancy is near that of pure noise.
  kNoise,
};

// The state of a run.
struct DiscrepancyView {
  // Smoothed over `rounds` rounds.
  double gamma = 0;
  uint32_t rounds = 0;
  // The numbers of groups, of steps between averages, and of steps of each group in the whole run
  // (0: unknown).
  uint32_t groups = 2;
  uint32_t every_steps = 1;
  uint32_t total_steps = 0;
};

// The advice for a run, with its bounds.
struct DiscrepancyOutlook {
  DiscrepancyAdvice advice = DiscrepancyAdvice::kTooEarly;
  // The minimum of MaxGroups and the bound for the interval; empty: unlimited or unknown.
  std::optional<uint32_t> max_groups;
  // The maximum number of steps between averages; empty: unknown.
  std::optional<uint32_t> max_steps;
  // The advice as one clause. Begins with "the groups agree" if the advice is kRaise or kKeep.
  std::string text;
};

// Requires: view.groups > 1, view.every_steps > 0.
DiscrepancyOutlook OutlookOf(const DiscrepancyView& view);

}  // namespace cadre
