#include "model/balanced_stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::SpecOf;
using ::testing::ElementsAre;

// Fully connected layers with these numbers of outputs; the first one has 64 inputs, and a layer
// before it that flattens the image.
Graph Chain(const std::vector<int>& outputs) {
  std::string text = "model { input { channels: 64 height: 1 width: 1 } ";
  for (size_t i = 0; i < outputs.size(); ++i) {
    absl::StrAppend(&text, "layer { name: 'fc", i, "' fully_connected { out_features: ", outputs[i],
                    " } } ");
  }
  return *Graph::FromModel(
      SpecOf(text + "layer { name: 'loss' softmax_cross_entropy {} } }").model());
}

TEST(BalancedStages, DividesTheWork) {
  // The layers compute 64 * 64 products each, the last one 64 * 8.
  EXPECT_THAT(BalancedStages(Chain({64, 64, 64, 64, 8}), 2), ElementsAre(0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(BalancedStages(Chain({64, 64, 64, 64, 8}), 1), ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(BalancedStages(Chain({64, 64}), 4), ElementsAre(0, 1, 2, 3));
}

// Three borders are equally balanced within a tenth; the one after 'narrow' passes 2 elements.
TEST(BalancedStages, PrefersNarrowBorders) {
  const Graph graph = *Graph::FromModel(SpecOf(R"(model {
    input { channels: 64 height: 1 width: 1 }
    layer { name: "fc" fully_connected { out_features: 64 } }
    layer { name: "relu" relu {} }
    layer { name: "narrow" fully_connected { out_features: 2 } }
    layer { name: "wide" fully_connected { out_features: 64 } }
    layer { name: "last" fully_connected { out_features: 64 } }
    layer { name: "loss" softmax_cross_entropy {} }
  })")
                                            .model());
  EXPECT_THAT(BalancedStages(graph, 2), ElementsAre(0, 0, 0, 0, 1, 1, 1));
}

// Against all divisions.
TEST(BalancedStages, IsWithinATenthOfTheLeastMaximum) {
  const Graph graph = Chain({8, 120, 16, 64, 32, 100, 4, 80});
  const auto work = [&](int begin, int end) {
    double sum = 0;
    for (int l = begin; l < end; ++l) sum += static_cast<double>(graph[l].flops);
    return sum;
  };
  double least = 1e18;
  for (int a = 1; a < graph.size(); ++a) {
    for (int b = a + 1; b < graph.size(); ++b) {
      least = std::min(least, std::max({work(0, a), work(a, b), work(b, graph.size())}));
    }
  }
  const std::vector<int> stages = BalancedStages(graph, 3);
  EXPECT_TRUE(std::is_sorted(stages.begin(), stages.end()));
  for (int s = 0; s < 3; ++s) {
    const auto [begin, end] = std::equal_range(stages.begin(), stages.end(), s);
    ASSERT_NE(begin, end);
    EXPECT_LE(work(begin - stages.begin(), end - stages.begin()), 1.1 * least);
  }
}

}  // namespace
}  // namespace cadre
