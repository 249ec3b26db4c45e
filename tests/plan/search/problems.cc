#include "tests/plan/search/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/run_file.h"
#include "plan/layer_part.h"
#include "plan/plan_collectives.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/move_model.h"
#include "tests/model/testing.h"

namespace cadre::testing {
namespace {

class Writer {
 public:
  explicit Writer(std::mt19937& random) : random_(random) {}

  std::string Images() {
    std::string text = "model {\n  input { channels: 4 height: 8 width: 8 }\n";
    int open = 1 + Below(3);
    bool image = true;
    while (open-- > 0) {
      if (Below(3) == 0) {
        text += image ? Branch() : Products();
      } else if (image && Below(4) > 0) {
        text += OnImage();
      } else {
        text += Product();
        image = false;
      }
    }
    text += Layer("fully_connected { out_features: 6 }");
    text += Layer("softmax_cross_entropy {}");
    return text + "}\n";
  }

  std::string Tokens() {
    std::string text = "model {\n  tokens { length: 4 }\n";
    text += Layer("embedding { vocabulary: 8 features: 8 positions: true }");
    const std::string from = Last();
    if (Below(2) == 0) text += Layer("layer_norm {}");
    const char* const middle[] = {"attention { heads: 2 causal: true }",
                                  "attention { heads: 2 padding_token: 0 }",
                                  "fully_connected { out_features: 8 }"};
    text += Layer(middle[Below(3)]);
    if (Below(2) == 0) text += Joined("add {}", Last(), from);
    text += Layer("fully_connected { out_features: 8 }");
    text += Layer("softmax_cross_entropy {}");
    return text + "}\n";
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  std::string Last() const { return layers_ == 0 ? "input" : absl::StrCat("l", layers_ - 1); }

  std::string Layer(const std::string& what) {
    return absl::StrCat("  layer { name: \"l", layers_++, "\" ", what, " }\n");
  }
  std::string From(const std::string& what, const std::string& input) {
    return absl::StrCat("  layer { name: \"l", layers_++, "\" input: \"", input, "\" ", what,
                        " }\n");
  }
  std::string Joined(const std::string& what, const std::string& a, const std::string& b) {
    return absl::StrCat("  layer { name: \"l", layers_++, "\" input: \"", a, "\" input: \"", b,
                        "\" ", what, " }\n");
  }

  std::string Convolution() {
    return Below(2) == 0 ? "convolution { out_channels: 4 kernel: 3 padding: 1 }"
                         : "convolution { out_channels: 4 kernel: 1 }";
  }

  std::string OnImage() {
    switch (Below(4)) {
      case 0:
        return Layer("relu {}");
      case 1:
        return Layer("batch_norm {}");
      case 2:
        return Layer("max_pool { kernel: 3 stride: 1 padding: 1 }");
      default:
        return Layer(Convolution());
    }
  }

  // A tensor combined with a convolution of it.
  std::string Branch() {
    std::string text = layers_ == 0 || joined_ ? Layer(Convolution()) : "";
    const std::string from = Last();
    text += From(Convolution(), from);
    joined_ = Below(2) == 0;
    return text + Joined(joined_ ? "concat {}" : "add {}", Last(), from);
  }

  std::string Product() { return Layer("fully_connected { out_features: 12 }"); }
  std::string Products() {
    std::string text = Product();
    if (Below(2) == 0) text += Layer("relu {}");
    return text;
  }

  std::mt19937& random_;
  int layers_ = 0;
  // The last branch was concatenated.
  bool joined_ = false;
};

double Between(std::mt19937& random, double min, double max) {
  std::uniform_real_distribution<double> logarithm(std::log(min), std::log(max));
  return std::exp(logarithm(random));
}

LinkProfile RandomLink(std::mt19937& random) {
  LinkProfile link{.alpha = Between(random, 1e-7, 1e-4), .beta = Between(random, 1e-11, 1e-8)};
  if (random() % 2 == 0) link.gamma = link.beta / 5;
  return link;
}

HardwareModel RandomHardware(std::mt19937& random) {
  HardwareModel hardware = UniformHardware(RandomLink(random), 0);
  if (random() % 3 > 0) hardware.flops = Between(random, 1e7, 1e11);
  if (random() % 2 == 0) hardware.update_seconds = Between(random, 1e-10, 1e-8);
  if (random() % 2 == 0) hardware.copy_seconds = Between(random, 1e-11, 1e-9);
  if (random() % 3 == 0) {
    hardware.per_host = 2;
    hardware.inside = RandomLink(random);
  }
  return hardware;
}

}  // namespace

OwnedProblem ProblemOfSpec(const v1::RunSpec& spec, int ranks) {
  auto graph = Graph::FromModel(spec.model());
  EXPECT_TRUE(graph.ok()) << graph.status() << spec.DebugString();
  OwnedProblem owned{.spec = spec, .graph = std::make_unique<Graph>(*std::move(graph))};
  owned.index = std::make_unique<ParameterIndex>(ParameterIndex::FromGraph(*owned.graph));
  owned.problem = {.graph = owned.graph.get(), .index = owned.index.get(), .ranks = ranks};
  owned.problem.batch = std::max<int64_t>(1, spec.batch_per_group());
  return owned;
}

OwnedProblem ZooProblem(const std::string& name, int ranks, int64_t batch) {
  auto file = ReadRunSpec(ZooFolder() + "/" + name + ".textproto");
  EXPECT_TRUE(file.ok()) << file.status();
  file->spec.set_batch_per_group(batch);
  OwnedProblem owned = ProblemOfSpec(file->spec, ranks);
  owned.problem.hardware = UniformHardware({.alpha = 2e-6, .beta = 1 / 6e9}, 1e12);
  return owned;
}

OwnedProblem BranchesProblem(int ranks, const std::vector<std::string>& branches) {
  std::string text =
      "batch_per_group: 256 optimizer { sgd { momentum: 0.9 } } model { "
      "input { channels: 1 height: 32 width: 32 } layer { name: 'flat' flatten {} } ";
  std::string inputs;
  for (const std::string& branch : branches) {
    std::string before = "flat";
    for (int l = 0; l < 6; ++l) {
      const std::string name = absl::StrCat(branch, l);
      absl::StrAppend(&text, "layer { name: '", name, "' input: '", before,
                      "' fully_connected { out_features: 1024 } } ");
      before = name;
    }
    absl::StrAppend(&inputs, " input: '", before, "'");
  }
  OwnedProblem owned =
      ProblemOfSpec(SpecOf(absl::StrCat(text, "layer { name: 'join'", inputs,
                                        " add {} } "
                                        "layer { name: 'loss' softmax_cross_entropy {} } }")),
                    ranks);
  owned.problem.hardware = UniformHardware({.alpha = 50e-6, .beta = 1e-7}, 1e10);
  return owned;
}

OwnedProblem RandomProblem(std::mt19937& random, int ranks) {
  Writer writer(random);
  const std::string text = random() % 4 == 0 ? writer.Tokens() : writer.Images();
  OwnedProblem owned = ProblemOfSpec(SpecOf(text + "batch_per_group: 8"), ranks);
  PlanProblem& problem = owned.problem;
  problem.micro_batches = 1 + static_cast<int>(random() % 2);
  problem.optimizer_states = static_cast<int>(random() % 3);
  problem.overlap = false;
  constexpr v1::Cluster::CollectivePolicy kPolicies[] = {v1::Cluster::AUTO, v1::Cluster::AUTO,
                                                         v1::Cluster::RING, v1::Cluster::PAPER};
  problem.collectives = kPolicies[random() % 4];
  problem.hardware = RandomHardware(random);
  return owned;
}

const LayerLayouts& LayerOf(const Plan& plan, const std::string& name) {
  return *std::find_if(plan.layers.begin(), plan.layers.end(),
                       [&](const LayerLayouts& layer) { return layer.name == name; });
}

double LayerCost(const PlanProblem& problem, const Mesh& mesh, int layer,
                 const LayerLayouts& layouts) {
  const GraphLayer& graph_layer = (*problem.graph)[layer];
  const HardwareModel& hardware = problem.hardware;
  const LayerSeconds compute =
      hardware.SecondsOf(graph_layer, layer, PartOf(layouts, mesh, LargestMicroBatch(problem)));
  double seconds = (compute.forward + compute.backward) * problem.micro_batches;
  // Elements by the axes that sum and the axes that own them.
  using Axes = std::vector<std::string>;
  std::map<std::pair<Axes, Axes>, int64_t> elements;
  for (size_t p = 0; p < graph_layer.parameters.size(); ++p) {
    const Bucket bucket{.axes = layouts.gradient_sums[p],
                        .replica_axes = ReplicaAxes(layouts, p, mesh)};
    elements[{bucket.axes, bucket.owner_axes()}] +=
        LocalElements(graph_layer.parameters[p].shape, layouts.parameters[p], mesh);
  }
  for (const auto& [axes, count] : elements) {
    const auto& [sums, owners] = axes;
    const int own = mesh.Size(owners);
    seconds += MinCollectiveSeconds(problem.collectives, graph_layer, count, mesh.Size(sums), own,
                                    hardware.LinkOf(mesh, sums), hardware.LinkOf(mesh, owners));
    seconds += hardware.update_seconds * LargestPart(count, own);
  }
  return seconds;
}

double PlanCost(const PlanProblem& problem, const Plan& plan) {
  double sum = 0;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    sum += LayerCost(problem, plan.mesh, l, plan.layers[l]);
  }
  for (const LayerMoves& moves : MovesOf(problem, plan)) {
    sum += problem.micro_batches * (moves.forward.seconds + moves.backward.seconds);
  }
  return sum;
}

int64_t PlanBytes(const PlanProblem& problem, const Plan& plan) {
  int64_t bytes = 0;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    bytes += LayerBytes(problem, plan.mesh, l, plan.layers[l]);
  }
  return bytes;
}

}  // namespace cadre::testing
