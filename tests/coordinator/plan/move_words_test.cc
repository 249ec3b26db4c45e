#include "coordinator/plan/move_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "spec/graph.h"
#include "spec/op_indices.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "spec/tape.h"
#include "tests/spec/testing.h"

namespace cadre {
namespace {

// Everything can be cut into 2 * 2 * 2 even parts.
constexpr char kImages[] = R"(
model {
  input { channels: 8 height: 32 width: 32 }
  layer { name: "conv1" convolution { out_channels: 16 kernel: 3 padding: 1 } }
  layer { name: "norm" batch_norm {} }
  layer { name: "relu1" relu {} }
  layer { name: "pool" max_pool { kernel: 2 stride: 2 } }
  layer { name: "conv2" convolution { out_channels: 16 kernel: 1 } }
  layer { name: "add" input: "pool" input: "conv2" add {} }
  layer { name: "conv3" convolution { out_channels: 16 kernel: 3 padding: 1 stride: 2 } }
  layer { name: "flat" flatten {} }
  layer { name: "fc1" fully_connected { out_features: 64 } }
  layer { name: "relu2" relu {} }
  layer { name: "fc2" fully_connected { out_features: 32 } }
  layer { name: "fc3" fully_connected { out_features: 64 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 16)";

constexpr char kTokens[] = R"(
model {
  tokens { length: 16 }
  layer { name: "embedding" embedding { vocabulary: 16 features: 32 positions: true } }
  layer { name: "norm" layer_norm {} }
  layer { name: "attention" attention { heads: 8 causal: true } }
  layer { name: "add1" input: "attention" input: "embedding" add {} }
  layer { name: "fc1" fully_connected { out_features: 64 } }
  layer { name: "gelu" gelu {} }
  layer { name: "fc2" fully_connected { out_features: 32 } }
  layer { name: "add2" input: "fc2" input: "add1" add {} }
  layer { name: "head" fully_connected { out_features: 16 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 16)";

struct Planned {
  Graph graph;
  ParameterIndex index;
  PlanProblem problem;
  Plan plan;
};

Planned RandomPlan(const char* text, std::mt19937& random) {
  const v1::RunSpec spec = testing::SpecOf(text);
  Planned planned{.graph = *Graph::FromModel(spec.model())};
  planned.index = ParameterIndex::FromGraph(planned.graph);
  const auto size = [&] { return 1 << random() % 2; };
  planned.plan.mesh = Mesh({{"data", 2}, {"space", size()}, {"model", size()}});
  for (const GraphLayer& layer : planned.graph.layers()) {
    const auto legal = LegalSplits(layer, planned.plan.mesh);
    planned.plan.layers.push_back(
        *LayOut(layer, planned.plan.mesh, legal[random() % legal.size()]));
  }
  planned.problem.batch = spec.batch_per_group();
  planned.problem.ranks = planned.plan.mesh.ranks();
  planned.problem.machine = UniformMachine({.alpha = 1, .beta = 1}, 0);
  return planned;
}

// By layer and direction, of the rank that receives most in each move.
struct TapeWords {
  std::map<int, double> forward;
  std::map<int, double> backward;
};

TapeWords WordsOfTapes(const Planned& planned) {
  // By layer, input and step.
  using Key = std::tuple<bool, int, int, size_t>;
  std::map<Key, double> most;
  for (int rank = 0; rank < planned.plan.mesh.ranks(); ++rank) {
    const Tape tape = MakeTape(planned.graph, planned.plan, rank, planned.problem.batch, true);
    for (const TapeOp& op : tape.ops) {
      const bool back = op.kind == TapeOpKind::kMoveGradient;
      for (size_t s = 0; s < op.move.steps.size(); ++s) {
        double& words = most[{back, op.layer, op.input, s}];
        words = std::max(words, static_cast<double>(op.move.steps[s].words_received()));
      }
    }
  }
  TapeWords sums;
  for (const auto& [key, words] : most) {
    (std::get<0>(key) ? sums.backward : sums.forward)[std::get<1>(key)] += words;
  }
  return sums;
}

// Whether some dimension is cut by axes in two ways of which neither goes on where the other ends:
// what a rank has and what it needs have no fixed place to one another then.
bool Apart(const Layout& from, const Layout& to) {
  for (int d = 0; d < 4; ++d) {
    const std::vector<std::string>& a = from.axes(d);
    const std::vector<std::string>& b = to.axes(d);
    const size_t least = std::min(a.size(), b.size());
    if (!std::equal(a.begin(), a.begin() + static_cast<ptrdiff_t>(least), b.begin())) return true;
  }
  return false;
}

bool ComesApart(const Planned& planned, int l) {
  const GraphLayer& layer = planned.graph[l];
  const LayerLayouts& layouts = planned.plan.layers[static_cast<size_t>(l)];
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    const int producer = layer.inputs[i];
    const Layout from = producer == Graph::kInput
                            ? InputLayout(planned.graph, planned.plan)
                            : planned.plan.layers[static_cast<size_t>(producer)].output;
    if (Apart(from, layouts.inputs[i])) return true;
  }
  return false;
}

// Exactly, but where layouts stand across one another: there about.
void ExpectWords(double estimate, double words, bool apart) {
  const double tolerance = apart ? 0.35 * words : 1e-6;
  ASSERT_NEAR(estimate, words, tolerance);
}

void ExpectAsTheTapes(const char* text, int plans, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < plans; ++round) {
    Planned planned = RandomPlan(text, random);
    planned.problem.graph = &planned.graph;
    planned.problem.index = &planned.index;
    const std::vector<LayerMoves> moves = MovesOf(planned.problem, planned.plan);
    TapeWords tapes = WordsOfTapes(planned);
    for (int l = 0; l < planned.graph.size(); ++l) {
      const LayerMoves& of = moves[static_cast<size_t>(l)];
      SCOPED_TRACE(planned.graph[l].name + " in round " + std::to_string(round) + "\n" +
                   PrintPlan(planned.plan, planned.graph, planned.index));
      const bool apart = ComesApart(planned, l);
      ASSERT_NO_FATAL_FAILURE(ExpectWords(of.forward.words, tapes.forward[l], apart));
      ASSERT_NO_FATAL_FAILURE(ExpectWords(of.backward.words, tapes.backward[l], apart));
    }
  }
}

TEST(MoveWordsTest, ImagesTravelAsTheTapesSay) { ExpectAsTheTapes(kImages, 150, 1); }

TEST(MoveWordsTest, SequencesTravelAsTheTapesSay) { ExpectAsTheTapes(kTokens, 150, 2); }

}  // namespace
}  // namespace cadre
