// Computes the discrepancy: how far the groups' models diverge between two averages, relative to
// the progress of their mean. Advises on the number of groups and of steps between averages, with
// the bounds that convergence results for local SGD give.
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
// grows, although training gets worse. H is therefore bounded separately: for G groups that average
// every H steps and train for T steps each, the speed-up is linear in G while G is at most about
// (T / H^4)^(1/3) (Yu, Yang, Zhu 2019: gradients of bounded length) or (T / H^2)^(1/3) (Wang, Joshi
// 2018). Both omit constants, so they are only orders of magnitude; the measured discrepancy takes
// precedence. To average more often is therefore advised only if H exceeds the bound several times
// over, in a run that is long enough for the bound, and whose groups do not learn the same.
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

// The convergence result that bounds the interval.
enum class IntervalBound {
  kYu,
  kWangJoshi,
};

// The maximum number of steps between averages; at least 1. `steps` is T. Requires: steps >= 0,
// groups >= 1.
int64_t MaxStepsBetweenAverages(double steps, int64_t groups, IntervalBound bound);

// The maximum number of groups; at least 1. Requires: steps >= 0, every_steps >= 1.
int64_t MaxGroupsForInterval(double steps, int64_t every_steps, IntervalBound bound);

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

// What to change in a run, as one clause. Begins with "the groups agree" unless fewer groups or
// fewer steps between averages are advised. Requires: view.groups > 1, view.every_steps > 0.
std::string AdviceFor(const DiscrepancyView& view);

}  // namespace cadre
