#include "plan/cost/hierarchical_averaging.h"

namespace cadre {

CommunicationCost SynchronousStep(int64_t n, int64_t ranks) { return AllReduce(n, ranks); }

double WeightGradientWords(int64_t ranks, int64_t in_features, int64_t out_features) {
  return AllButOwn(1.0 * in_features * out_features, ranks);
}

double ActivationWords(int64_t ranks, int64_t batch, int64_t in_features, int64_t out_features) {
  return AllButOwn(batch * (1.0 * in_features / ranks + out_features), ranks);
}

CommunicationCost NaiveAcross(int64_t n, int64_t groups) { return AllReduce(n, groups); }

CommunicationCost ShardedAcross(int64_t n, int64_t groups, int64_t ranks) {
  return AllReduce(1.0 * n / ranks, groups);
}

AggregationTraffic TrafficOfRound(int64_t n, int64_t groups, int64_t ranks) {
  AggregationTraffic traffic;
  traffic.words_up_per_rank = 1.0 * n / ranks;
  traffic.words_down_per_rank = traffic.words_up_per_rank;
  traffic.bytes_per_round = 2 * groups * n * kBytesPerWord;
  return traffic;
}

int64_t SynchronousBytesPerStep(int64_t n, int64_t groups) {
  return 2 * (groups - 1) * n * kBytesPerWord;
}

double AggregationSaving(int64_t groups, int64_t tau) { return AllButOwn(tau, groups); }

CommunicationCost HierarchicalStep(int64_t n, int64_t groups, int64_t ranks, int64_t tau) {
  const CommunicationCost average = ShardedAcross(n, groups, ranks);
  return SynchronousStep(n, ranks) + CommunicationCost{average.words / tau, average.messages / tau};
}

int64_t SynchronousSteps(int64_t samples, int64_t batch) { return samples / batch; }

int64_t HierarchicalSteps(int64_t samples, int64_t groups, int64_t batch) {
  return samples / (groups * batch);
}

double EpochSaving(int64_t n, int64_t groups, int64_t ranks, int64_t tau, int64_t samples,
                   int64_t batch) {
  return SynchronousSteps(samples, batch) * SynchronousStep(n, groups * ranks).words /
         (HierarchicalSteps(samples, groups, batch) *
          HierarchicalStep(n, groups, ranks, tau).words);
}

}  // namespace cadre
