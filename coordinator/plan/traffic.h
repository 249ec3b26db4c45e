// How much travels for each way of keeping groups together: the formulas behind the choice of plan
// and of averaging, as numbers that measured counters can be held against.
//
// Symbols: n parameters of the model (fp32 words), p ranks of a group, G groups, tau steps between
// averages, B samples of a group's step. A rank's words are what it sends; it receives as many.
// Fractions are kept: they are means over ranks where n does not divide.
//
// Source: costs of "hierarchical local SGD" (Lee, Kang, Agrawal, Choudhary, Liao, IEEE Big Data
// 2020), derived from the algorithm; ring and halving-doubling collectives move
// 2 (p - 1) / p n words per rank for an all-reduce, (p - 1) / p n for half of one.
//
// Thread-safe (pure functions). Requires: n, p, G, tau >= 1.
#pragma once

#include <cstdint>

namespace cadre {

inline constexpr int64_t kBytesPerWord = 4;

// --- Inside a group, per rank ---

// Words of one synchronous all-reduce of n words over `ranks`: 2 (ranks - 1) / ranks n.
double AllReduceWords(int64_t n, int64_t ranks);

// Words for one fully connected layer without sharding its weights: their gradient's exchange,
// (p - 1) / p d_in d_out for each half of an all-reduce.
double WeightGradientWords(int64_t ranks, int64_t in_features, int64_t out_features);

// Words for the same layer when activations and errors travel in place of the gradient:
// (p - 1) / p B (d_in / p + d_out).
double ActivationWords(int64_t ranks, int64_t batch, int64_t in_features, int64_t out_features);

// --- One layer on a grid of Pr x Pc ranks, and on strips of images; per rank (Gholami et al. 2018,
// derived from the algorithms) ---

// W is cut by outputs into Pr parts, the batch into Pc; d words of features per sample.
struct GridWords {
  // Forward: the outputs' parts are gathered: (B / Pc) (Pr - 1) / Pr d_out.
  double gather_outputs = 0;
  // Backward: the input's gradient is all-reduced: 2 (B / Pc) (Pr - 1) / Pr d_in.
  double input_gradient = 0;
  // The weights' gradient is all-reduced: 2 (Pc - 1) / Pc |W| / Pr.
  double weight_gradient = 0;
};
GridWords GridLayerWords(int64_t pr, int64_t pc, int64_t batch, int64_t in_features,
                         int64_t out_features, int64_t weights);

// Border rows of an image that travel in one direction: B width channels floor(kernel / 2). Ranks
// with two neighbours send them twice. Forward these are the input's, backward the output's.
double HaloWords(int64_t batch, int64_t width, int64_t channels, int64_t kernel);

// A layer that was split by samples over p ranks is taken by one whose weights are: each rank
// gathers the B samples, (p - 1) / p B d, and as much goes back for the gradient.
double HybridGatherWords(int64_t ranks, int64_t batch, int64_t features);

// --- Across groups, by all-reduce among the ranks that own the same slice ---

// Words per rank of one average when every rank exchanges the whole model: 2 (G - 1) / G n.
double NaiveAcrossWords(int64_t n, int64_t groups);

// When every rank exchanges only the slice that it owns: p times fewer.
double ShardedAcrossWords(int64_t n, int64_t groups, int64_t ranks);

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

// Words of a hierarchical step: all-reduce inside the group, and the tau-th part of an average.
double HierarchicalStepWords(int64_t n, int64_t groups, int64_t ranks, int64_t tau);

// How many times fewer words a pass takes than with synchronous steps of B samples over all G p
// ranks. Steps are whole: the tail of the pass is dropped.
double EpochSaving(int64_t n, int64_t groups, int64_t ranks, int64_t tau, int64_t samples,
                   int64_t batch);

}  // namespace cadre
