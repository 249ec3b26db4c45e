// The discrepancy measure: how far groups that train apart drift between two averages, against how
// far they get together; and what that says about how many groups, and how many steps between
// averages, training can bear.
//
// Just before averaging, with w_g the G groups' weights, w their mean and w' the version they began
// from:
//
//   gamma = (1/G) sum of |w_g - w|^2 / |w - w'|^2            ("spread" over "moved")
//
// 0 where all groups do the same, G - 1 where they do nothing but noise of their own. If every
// group's displacement is a common signal of squared length s and noise of its own of squared
// length n, then spread = n (1 - 1/G) and moved = s + n / G, so that
//
//   gamma = r (1 - 1/G) / (1 + r / G),  r = n / s
//
// A gamma of at most 1 says that the mean moved at least as far as the groups lie apart; it is
// taken as the bound up to which more groups pay.
//
// It does not see everything. The signal of H steps in a row grows with H and noise with its root,
// so gamma falls while groups average more seldom, although what they lose by that is lost. So H
// has a bound of its own, from what is proved of local SGD (coordinator/cost/averaging_interval.h).
//
// Source: the practical metric of "hierarchical local SGD" (Lee, Kang, Agrawal, Choudhary, Liao,
// IEEE Big Data 2020) has not been published in full; this measure stands in its place.
//
// What counts as weights: the parameters that are trained, as ranks contribute them, groups
// weighted by their samples. Running statistics of batch norm are averaged but not counted: their
// lengths have nothing to do with those of weights. State of the optimiser (momentum) is neither
// averaged nor counted; what it does to the weights is.
//
// Thread-safe (pure functions over values).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cadre {

// NaN where one of them is not a finite number, spread is below 0, or moved is not above 0.
double DiscrepancyOf(double spread, double moved);

// What the model of signal and noise gives. Requires: groups >= 1, signal >= 0, noise >= 0, one of
// them above 0.
double ExpectedDiscrepancy(double signal, double noise, double groups);

// The r that explains gamma; infinite from G - 1 on. Requires: gamma >= 0, groups > 1.
double NoiseOverSignal(double gamma, double groups);

// The most groups whose expected discrepancy is at most 1, if r stays what it is (r falls with the
// batch of a group, and rises while the loss falls); empty: any number. At least 1.
std::optional<uint32_t> MostGroups(double noise_over_signal);

// A mean over rounds of spread / (spread + moved), in which a round counts a tenth less with every
// round after it. This share lies in [0, 1], so a round in which the mean hardly moved counts no
// more than others; and a round counts alike however far its groups moved, so early rounds, which
// move most, do not drown the later ones.
struct SmoothedDiscrepancy {
  double share = 0;
  uint32_t rounds = 0;

  // Requires: DiscrepancyOf(spread, moved) is a number.
  void Add(double spread, double moved);
  // As a discrepancy again. NaN before the first round.
  double Value() const;
};

enum class DiscrepancyAdvice {
  // Fewer rounds than say anything.
  kTooEarly,
  // More groups, or more steps between averages, may be tried.
  kRaise,
  // Neither more groups nor more steps.
  kKeep,
  // Fewer groups, or fewer steps.
  kLower,
  // As kLower, and urgent: at, or near, what pure noise gives.
  kNoise,
};

// What is known of a run.
struct DiscrepancyView {
  // Smoothed, over so many rounds.
  double gamma = 0;
  uint32_t rounds = 0;
  // Groups, steps between averages, and steps of each group in the whole run; 0: not known.
  uint32_t groups = 2;
  uint32_t every_steps = 1;
  uint32_t total_steps = 0;
};

struct DiscrepancyOutlook {
  DiscrepancyAdvice advice = DiscrepancyAdvice::kTooEarly;
  // The fewest of MostGroups and what the interval allows; empty: any number, or not known.
  std::optional<uint32_t> most_groups;
  // Between averages; empty: not known.
  std::optional<uint32_t> most_steps;
  // For people; one clause. Begins with "the groups agree" where the advice is kRaise or kKeep.
  std::string text;
};

// Requires: view.groups > 1, view.every_steps > 0.
DiscrepancyOutlook OutlookOf(const DiscrepancyView& view);

}  // namespace cadre
