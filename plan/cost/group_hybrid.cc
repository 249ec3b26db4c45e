#include "plan/cost/group_hybrid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// If the link is unknown, words are counted instead of seconds.
WordLink LinkOf(const HybridProblem& problem) {
  return problem.link.known() ? problem.link : WordLink{.alpha = 0, .beta = 1};
}

// A fully connected layer in groups of g. Gathering the group's b g samples, of which each member
// has b, moves as many words as gathering outputs, of which each member has 1 / g.
CommunicationCost SplitLayer(const LayerShape& layer, const HybridProblem& problem, int64_t group,
                             bool gathers_inputs) {
  const double samples = problem.samples() * group;
  const double inputs = samples * layer.inputs;
  CommunicationCost exchange = AllGather(samples * layer.outputs, group);
  exchange += ReduceScatter(inputs, group);
  if (gathers_inputs) exchange += AllGather(inputs, group);
  exchange += AllReduce(1.0 * layer.weights / group, problem.workers / group);
  return exchange;
}

CommunicationCost WholeLayer(const LayerShape& layer, const HybridProblem& problem) {
  return AllReduce(layer.weights, problem.workers);
}

bool Fits(const HybridProblem& problem, int64_t group) {
  return problem.memory_bytes <= 0 ||
         HybridStateBytes(*problem.network, group) + HybridActivationBytes(problem, group) <=
             problem.memory_bytes;
}

}  // namespace

double HybridComputeSeconds(const HybridProblem& problem) {
  if (problem.flops <= 0) return 0;
  return 3 * problem.network->flops * problem.samples() / problem.flops;
}

CommunicationCost DataParallelCommunication(const HybridProblem& problem) {
  return AllReduce(problem.network->weights(), problem.workers);
}

CommunicationCost ModelParallelCommunication(const HybridProblem& problem) {
  CommunicationCost sum;
  for (const LayerShape& layer : problem.network->layers) {
    sum += AllGather(problem.batch * layer.outputs, problem.workers);
    sum += ReduceScatter(problem.batch * layer.inputs, problem.workers);
  }
  return sum;
}

std::vector<CommunicationCost> GroupHybridLayers(const HybridProblem& problem, int64_t group) {
  std::vector<CommunicationCost> layers;
  bool gathers = true;
  for (const LayerShape& layer : problem.network->layers) {
    if (layer.convolution || group == 1) {
      layers.push_back(WholeLayer(layer, problem));
      continue;
    }
    layers.push_back(SplitLayer(layer, problem, group, gathers));
    gathers = false;
  }
  return layers;
}

CommunicationCost GroupHybridCommunication(const HybridProblem& problem, int64_t group) {
  CommunicationCost sum;
  for (const CommunicationCost& layer : GroupHybridLayers(problem, group)) sum += layer;
  return sum;
}

double DataParallelSeconds(const HybridProblem& problem) {
  return HybridComputeSeconds(problem) + DataParallelCommunication(problem).Seconds(problem.link);
}

double ModelParallelSeconds(const HybridProblem& problem) {
  return HybridComputeSeconds(problem) + ModelParallelCommunication(problem).Seconds(problem.link);
}

double GroupHybridSeconds(const HybridProblem& problem, int64_t group) {
  return HybridComputeSeconds(problem) +
         GroupHybridCommunication(problem, group).Seconds(problem.link);
}

double HybridStateBytes(const NetworkShape& network, int64_t group) {
  return kBytesPerParameter *
         (network.convolution_weights() + 1.0 * network.product_weights() / group);
}

double HybridActivationBytes(const HybridProblem& problem, int64_t group) {
  double words = 0;
  for (const LayerShape& layer : problem.network->layers) {
    const double inputs = problem.samples() * layer.inputs;
    words += layer.convolution ? inputs : inputs * group;
  }
  return words * kBytesPerWord;
}

double HybridActivationWords(const NetworkShape& network) {
  int64_t words = 0;
  for (const LayerShape& layer : network.layers) {
    if (layer.convolution) continue;
    if (words == 0) words = layer.inputs;
    words += layer.outputs + layer.inputs;
  }
  return words;
}

double BestGroup(const HybridProblem& problem) {
  const double words = HybridActivationWords(*problem.network);
  if (words == 0) return 1;
  return BestGroup(problem.network->product_weights(), problem.samples(), words);
}

double BestGroup(double product_weights, double samples, double activation_words) {
  return std::sqrt(2 * product_weights / (samples * activation_words));
}

absl::StatusOr<int64_t> ChooseGroup(const HybridProblem& problem) {
  const std::vector<int64_t> divisors = DivisorsOf(problem.workers);
  const double best = BestGroup(problem);
  auto above = std::find_if(divisors.begin(), divisors.end(),
                            [&](int64_t divisor) { return divisor >= best; });
  if (above == divisors.end()) --above;
  auto chosen = above;
  if (above != divisors.begin()) {
    const WordLink link = LinkOf(problem);
    const auto below = above - 1;
    if (GroupHybridCommunication(problem, *below).Seconds(link) <
        GroupHybridCommunication(problem, *above).Seconds(link)) {
      chosen = below;
    }
  }
  while (chosen != divisors.end() && !Fits(problem, *chosen)) ++chosen;
  if (chosen != divisors.end()) return *chosen;
  const double needed = HybridStateBytes(*problem.network, problem.workers) +
                        HybridActivationBytes(problem, problem.workers);
  return absl::ResourceExhaustedError(absl::StrCat(
      "group-hybrid needs ", std::ceil(needed), " bytes on each worker even in one group of ",
      problem.workers, ", ", std::ceil(needed - problem.memory_bytes), " more than it has"));
}

std::vector<bool> LayersWorthSplitting(const HybridProblem& problem, int64_t group) {
  const std::vector<LayerShape>& layers = problem.network->layers;
  const WordLink link = LinkOf(problem);
  // The minimum sum up to the current layer if this layer is whole (0) or split (1), and the state
  // of the previous layer in that minimum.
  std::array<double, 2> min_sum = {0, std::numeric_limits<double>::infinity()};
  std::vector<std::array<int, 2>> from;
  for (const LayerShape& layer : layers) {
    const int whole_from = min_sum[1] < min_sum[0] ? 1 : 0;
    const double whole = min_sum[whole_from] + WholeLayer(layer, problem).Seconds(link);
    double split = std::numeric_limits<double>::infinity();
    int split_from = 0;
    for (int before = 0; before < 2 && !layer.convolution && group > 1; ++before) {
      const double sum =
          min_sum[before] + SplitLayer(layer, problem, group, before == 0).Seconds(link);
      if (sum < split) split_from = before;
      split = std::min(split, sum);
    }
    min_sum = {whole, split};
    from.push_back({whole_from, split_from});
  }
  std::vector<bool> split_layers(layers.size());
  int state = min_sum[1] < min_sum[0] ? 1 : 0;
  for (size_t l = layers.size(); l-- > 0;) {
    split_layers[l] = state == 1;
    state = from[l][state];
  }
  return split_layers;
}

std::vector<int64_t> DivisorsOf(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d != n / d) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

}  // namespace cadre
