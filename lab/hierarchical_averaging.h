// The communication of groups that train independently and average periodically, for comparison
// with measured counters.
//
// Source: Lee, Kang, Agrawal, Choudhary, Liao, "hierarchical local SGD", IEEE Big Data 2020; costs
// derived from the algorithm:
//
//   step                2 ceil(log2 p) alpha + 2 (p - 1) / p n beta
//   average             2 ceil(log2 G) alpha + 2 (G - 1) / G (n / p) beta
//     without slices    2 ceil(log2 G) alpha + 2 (G - 1) / G n beta
//   epoch               floor(D / (G B)) (step + average / tau); with synchronous steps of all
//                       ranks floor(D / B) 2 (P - 1) / P n
//
// for n parameters of the model (fp32 words), P ranks in G groups of p, tau steps between averages,
// B samples per step of a group and D per epoch. Exchanges and fractions are as in
// plan/cost/communication_cost.h. Words: the number that a rank sends; it receives as many.
//
// Thread-safe (pure functions). Requires: n, p, G, tau >= 1.
#pragma once

#include <cstdint>

#include "plan/cost/communication_cost.h"

namespace cadre {

// --- Inside a group, per rank ---

// The all-reduce of n words in a synchronous step.
inline CommunicationCost SynchronousStep(int64_t n, int64_t ranks) { return AllReduce(n, ranks); }

// The exchange of the weight gradient of a fully connected layer with replicated weights: (p - 1) /
// p d_in d_out words for each phase of an all-reduce.
inline double WeightGradientWords(int64_t ranks, int64_t in_features, int64_t out_features) {
  return AllButOwn(1.0 * in_features * out_features, ranks);
}

// The exchange of activations and their gradients for the same layer with split weights: (p - 1) /
// p B (d_in / p + d_out).
inline double ActivationWords(int64_t ranks, int64_t batch, int64_t in_features,
                              int64_t out_features) {
  return AllButOwn(batch * (1.0 * in_features / ranks + out_features), ranks);
}

// --- Across groups, by all-reduce among the ranks that own the same slice ---

// One average in which every rank exchanges the whole model.
inline CommunicationCost AverageWithoutSlices(int64_t n, int64_t groups) {
  return AllReduce(n, groups);
}

// Every rank exchanges only the slice that it owns: p times fewer words.
inline CommunicationCost AverageBySlices(int64_t n, int64_t groups, int64_t ranks) {
  return AllReduce(1.0 * n / ranks, groups);
}

// --- Across groups, through aggregator shards, as Cadre averages ---

struct AggregationTraffic {
  // Words that one rank sends to the aggregators, and receives from them: n / p each.
  double words_up_per_rank = 0;
  double words_down_per_rank = 0;
  // Payload between groups and aggregators in one round, in both directions: 2 G n words.
  int64_t bytes_per_round = 0;
};

inline AggregationTraffic TrafficOfRound(int64_t n, int64_t groups, int64_t ranks) {
  const double words = 1.0 * n / ranks;
  return {words, words, 2 * groups * n * kBytesPerWord};
}

// Payload between groups of one synchronous step, in which rings of one member per group sum each
// slice of the gradients: 2 (G - 1) n words.
inline int64_t SynchronousBytesPerStep(int64_t n, int64_t groups) {
  return 2 * (groups - 1) * n * kBytesPerWord;
}

// The payload between groups per step with synchronous steps, divided by the payload when groups
// average every tau steps through aggregators: tau (G - 1) / G.
inline double RoundTrafficRatio(int64_t groups, int64_t tau) { return AllButOwn(tau, groups); }

// --- A step, and an epoch, per rank ---

// A step plus 1 / tau of an average.
inline CommunicationCost HierarchicalStep(int64_t n, int64_t groups, int64_t ranks, int64_t tau) {
  const CommunicationCost average = AverageBySlices(n, groups, ranks);
  return SynchronousStep(n, ranks) + CommunicationCost{average.words / tau, average.messages / tau};
}

// Whole steps per epoch: the remainder is dropped.
inline int64_t SynchronousSteps(int64_t samples, int64_t batch) { return samples / batch; }
inline int64_t HierarchicalSteps(int64_t samples, int64_t groups, int64_t batch) {
  return samples / (groups * batch);
}

// Words per epoch with synchronous steps of B samples over all P ranks, divided by the words per
// epoch with hierarchical steps.
inline double EpochTrafficRatio(int64_t n, int64_t groups, int64_t ranks, int64_t tau,
                                int64_t samples, int64_t batch) {
  return SynchronousSteps(samples, batch) * SynchronousStep(n, groups * ranks).words /
         (HierarchicalSteps(samples, groups, batch) *
          HierarchicalStep(n, groups, ranks, tau).words);
}

}  // namespace cadre
