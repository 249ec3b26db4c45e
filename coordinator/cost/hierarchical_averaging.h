// How much travels when groups train for themselves and average now and then, as numbers that
// measured counters can be held against.
//
// Source: Lee, Kang, Agrawal, Choudhary, Liao, "hierarchical local SGD", IEEE Big Data 2020; costs
// derived from the algorithm:
//
//   step                2 ceil(log2 p) alpha + 2 (p - 1) / p n beta
//   more per averaging  2 ceil(log2 G) alpha + 2 (G - 1) / G (n / p) beta
//     were it naive     2 ceil(log2 G) alpha + 2 (G - 1) / G n beta
//   pass                floor(D / (G B)) (step + more / tau), against floor(D / B) 2 (P - 1) / P n
//
// for n parameters of the model (fp32 words), P ranks in G groups of p, tau steps between averages,
// B samples of a group's step and D of a pass. Exchanges and fractions as in
// coordinator/cost/communication_cost.h; a rank's words are what it sends, and it receives as many.
//
// Thread-safe (pure functions). Requires: n, p, G, tau >= 1.
#pragma once

#include <cstdint>

#include "coordinator/cost/communication_cost.h"

namespace cadre {

// --- Inside a group, per rank ---

// One synchronous step's all-reduce of n words.
CommunicationCost SynchronousStep(int64_t n, int64_t ranks);

// A fully connected layer without sharding its weights: the exchange of its gradient,
// (p - 1) / p d_in d_out words for each half of an all-reduce.
double WeightGradientWords(int64_t ranks, int64_t in_features, int64_t out_features);

// Words for the same layer when activations and errors travel in place of the gradient:
// (p - 1) / p B (d_in / p + d_out).
double ActivationWords(int64_t ranks, int64_t batch, int64_t in_features, int64_t out_features);

// --- Across groups, by all-reduce among the ranks that own the same slice ---

// One average when every rank exchanges the whole model.
CommunicationCost NaiveAcross(int64_t n, int64_t groups);

// When every rank exchanges only the slice that it owns: p times fewer words.
CommunicationCost ShardedAcross(int64_t n, int64_t groups, int64_t ranks);

// --- Across groups, through aggregator shards, as Cadre averages ---

struct AggregationTraffic {
  // Words that one rank sends up, and again takes down: n / p.
  double words_up_per_rank = 0;
  double words_down_per_rank = 0;
  // Payload over the slow links in one round, by all groups, both ways: 2 G n words.
  int64_t bytes_per_round = 0;
  // The same when every rank would exchange the whole model: p times as much.
  int64_t naive_bytes_per_round = 0;
};

AggregationTraffic TrafficOfRound(int64_t n, int64_t groups, int64_t ranks);

// Payload over the slow links of one synchronous step, the groups' gradients being summed by a ring
// of one member per slice: 2 (G - 1) n words.
int64_t SynchronousBytesPerStep(int64_t n, int64_t groups);

// How many times less than synchronous training the slow links carry, per step, when averaging
// every tau steps through aggregators: tau (G - 1) / G.
double AggregationSaving(int64_t groups, int64_t tau);

// --- A step, and a pass over the data, per rank ---

// A step with the tau-th part of an average.
CommunicationCost HierarchicalStep(int64_t n, int64_t groups, int64_t ranks, int64_t tau);

// Steps are whole: the tail of the pass is dropped.
int64_t SynchronousSteps(int64_t samples, int64_t batch);
int64_t HierarchicalSteps(int64_t samples, int64_t groups, int64_t batch);

// How many times fewer words a pass takes than with synchronous steps of B samples over all P
// ranks.
double EpochSaving(int64_t n, int64_t groups, int64_t ranks, int64_t tau, int64_t samples,
                   int64_t batch);

}  // namespace cadre
