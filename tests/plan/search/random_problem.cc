#include "tests/plan/search/random_problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
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
    text += Below(2) == 0 ? Layer("attention { heads: 2 causal: true }")
                          : Layer("fully_connected { out_features: 8 }");
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

OwnedProblem ProblemOfText(const std::string& text, int ranks) {
  const v1::RunSpec spec = SpecOf(text);
  auto graph = Graph::FromModel(spec.model());
  EXPECT_TRUE(graph.ok()) << graph.status() << text;
  OwnedProblem owned{.text = text, .graph = std::make_unique<Graph>(*std::move(graph))};
  owned.index = std::make_unique<ParameterIndex>(ParameterIndex::FromGraph(*owned.graph));
  owned.problem = {.graph = owned.graph.get(), .index = owned.index.get(), .ranks = ranks};
  owned.problem.batch = std::max<int64_t>(1, spec.batch_per_group());
  return owned;
}

OwnedProblem RandomProblem(std::mt19937& random, int ranks) {
  Writer writer(random);
  const std::string text = random() % 4 == 0 ? writer.Tokens() : writer.Images();
  OwnedProblem owned = ProblemOfText(text + "batch_per_group: 8", ranks);
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

}  // namespace cadre::testing
