#include "coordinator/plan/traffic.h"

namespace cadre {
namespace {

// (members - 1) / members of `words`.
double AllButOwn(double words, int64_t members) {
  return words * static_cast<double>(members - 1) / static_cast<double>(members);
}

}  // namespace

double AllReduceWords(int64_t n, int64_t ranks) {
  return AllButOwn(2.0 * static_cast<double>(n), ranks);
}

double WeightGradientWords(int64_t ranks, int64_t in_features, int64_t out_features) {
  return AllButOwn(static_cast<double>(in_features) * static_cast<double>(out_features), ranks);
}

double ActivationWords(int64_t ranks, int64_t batch, int64_t in_features, int64_t out_features) {
  const double in_share = static_cast<double>(in_features) / static_cast<double>(ranks);
  return AllButOwn(static_cast<double>(batch) * (in_share + static_cast<double>(out_features)),
                   ranks);
}

GridWords GridLayerWords(int64_t pr, int64_t pc, int64_t batch, int64_t in_features,
                         int64_t out_features, int64_t weights) {
  const double samples = static_cast<double>(batch) / static_cast<double>(pc);
  GridWords words;
  words.gather_outputs = AllButOwn(samples * static_cast<double>(out_features), pr);
  words.input_gradient = AllButOwn(2 * samples * static_cast<double>(in_features), pr);
  words.weight_gradient = AllButOwn(2 * static_cast<double>(weights) / static_cast<double>(pr), pc);
  return words;
}

double HaloWords(int64_t batch, int64_t width, int64_t channels, int64_t kernel) {
  return static_cast<double>(batch) * static_cast<double>(width) * static_cast<double>(channels) *
         static_cast<double>(kernel / 2);
}

double HybridGatherWords(int64_t ranks, int64_t batch, int64_t features) {
  return AllButOwn(static_cast<double>(batch) * static_cast<double>(features), ranks);
}

double NaiveAcrossWords(int64_t n, int64_t groups) { return AllReduceWords(n, groups); }

double ShardedAcrossWords(int64_t n, int64_t groups, int64_t ranks) {
  return NaiveAcrossWords(n, groups) / static_cast<double>(ranks);
}

AggregationTraffic TrafficOfRound(int64_t n, int64_t groups, int64_t ranks) {
  AggregationTraffic traffic;
  traffic.words_up_per_rank = static_cast<double>(n) / static_cast<double>(ranks);
  traffic.words_down_per_rank = traffic.words_up_per_rank;
  traffic.bytes_per_round = 2 * groups * n * kBytesPerWord;
  traffic.naive_bytes_per_round = traffic.bytes_per_round * ranks;
  return traffic;
}

int64_t SynchronousBytesPerStep(int64_t n, int64_t groups) {
  return 2 * (groups - 1) * n * kBytesPerWord;
}

double AggregationSaving(int64_t groups, int64_t tau) {
  return AllButOwn(static_cast<double>(tau), groups);
}

double HierarchicalStepWords(int64_t n, int64_t groups, int64_t ranks, int64_t tau) {
  return AllReduceWords(n, ranks) + ShardedAcrossWords(n, groups, ranks) / static_cast<double>(tau);
}

double EpochSaving(int64_t n, int64_t groups, int64_t ranks, int64_t tau, int64_t samples,
                   int64_t batch) {
  const auto synchronous_steps = static_cast<double>(samples / batch);
  const auto hierarchical_steps = static_cast<double>(samples / (groups * batch));
  return synchronous_steps * AllReduceWords(n, groups * ranks) /
         (hierarchical_steps * HierarchicalStepWords(n, groups, ranks, tau));
}

}  // namespace cadre
