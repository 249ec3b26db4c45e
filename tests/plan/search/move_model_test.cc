#include "plan/search/move_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "model/graph.h"
#include "model/op_indices.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

// All extents are divisible by 2 * 2 * 2.
constexpr char kEvenImages[] = R"(
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

constexpr char kEvenTokens[] = R"(
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

struct PlannedModel {
  Graph graph;
  ParameterIndex index;
  PlanProblem problem;
  Plan plan;
};

PlannedModel RandomPlan(const char* text, std::mt19937& random) {
  const v1::RunSpec spec = testing::SpecOf(text);
  PlannedModel planned{.graph = *Graph::FromModel(spec.model())};
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
  planned.problem.hardware = UniformHardware({.alpha = 1, .beta = 1}, 0);
  return planned;
}

// By layer and direction: elements received by the busiest rank, summed over moves.
struct TapeElements {
  std::map<int, double> forward;
  std::map<int, double> backward;
};

TapeElements ElementsOfTapes(const PlannedModel& planned) {
  // By layer, input and step.
  using Key = std::tuple<bool, int, int, size_t>;
  std::map<Key, double> busiest;
  for (int rank = 0; rank < planned.plan.mesh.ranks(); ++rank) {
    const Tape tape = MakeTape(planned.graph, planned.plan, rank, planned.problem.batch, true);
    for (const TapeOp& op : tape.ops) {
      const bool back = op.kind == TapeOpKind::kMoveGradient;
      for (size_t s = 0; s < op.move.steps.size(); ++s) {
        double& elements = busiest[{back, op.layer, op.input, s}];
        elements = std::max(elements, 1.0 * op.move.steps[s].elements_received());
      }
    }
  }
  TapeElements sums;
  for (const auto& [key, elements] : busiest) {
    (std::get<0>(key) ? sums.backward : sums.forward)[std::get<1>(key)] += elements;
  }
  return sums;
}

// Whether the two lists of axes of some dimension differ although neither is a prefix of the other.
// The overlap of a rank's parts before and after the move then depends on the rank.
bool Misaligned(const Layout& from, const Layout& to) {
  for (int d = 0; d < 4; ++d) {
    const std::vector<std::string>& a = from.axes(d);
    const std::vector<std::string>& b = to.axes(d);
    const size_t common = std::min(a.size(), b.size());
    if (!std::equal(a.begin(), a.begin() + common, b.begin())) return true;
  }
  return false;
}

bool HasMisalignedMove(const PlannedModel& planned, int l) {
  const GraphLayer& layer = planned.graph[l];
  const LayerLayouts& layouts = planned.plan.layers[l];
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    const int producer = layer.inputs[i];
    const Layout from = producer == Graph::kInput ? InputLayout(planned.graph, planned.plan)
                                                  : planned.plan.layers[producer].output;
    if (Misaligned(from, layouts.inputs[i])) return true;
  }
  return false;
}

// Expects equal numbers, except for misaligned layouts.
void ExpectElements(double estimate, double elements, bool misaligned) {
  const double tolerance = misaligned ? 0.35 * elements : 1e-6;
  ASSERT_NEAR(estimate, elements, tolerance);
}

void ExpectAsTapes(const char* text, int plans, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < plans; ++round) {
    PlannedModel planned = RandomPlan(text, random);
    planned.problem.graph = &planned.graph;
    planned.problem.index = &planned.index;
    const std::vector<LayerMoves> moves = MovesOf(planned.problem, planned.plan);
    TapeElements tapes = ElementsOfTapes(planned);
    for (int l = 0; l < planned.graph.size(); ++l) {
      const auto& [forward, backward] = moves[l];
      SCOPED_TRACE(planned.graph[l].name + " in round " + std::to_string(round) + "\n" +
                   PrintPlan(planned.plan, planned.graph, planned.index));
      const bool misaligned = HasMisalignedMove(planned, l);
      ASSERT_NO_FATAL_FAILURE(ExpectElements(forward.elements, tapes.forward[l], misaligned));
      ASSERT_NO_FATAL_FAILURE(ExpectElements(backward.elements, tapes.backward[l], misaligned));
    }
  }
}

TEST(MoveModelTest, ImagesMatchTapes) { ExpectAsTapes(kEvenImages, 150, 1); }

TEST(MoveModelTest, SequencesMatchTapes) { ExpectAsTapes(kEvenTokens, 150, 2); }

}  // namespace
}  // namespace cadre
