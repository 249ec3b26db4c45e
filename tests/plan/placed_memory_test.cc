#include "plan/placed_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/memory.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(PlacedMemoryTest, NamesRankAndLargestLayer) {
  const v1::RunSpec spec = testing::SpecOf(R"(
    model {
      input { channels: 4 height: 1 width: 1 }
      layer { name: "small" fully_connected { out_features: 8 } }
      layer { name: "large" fully_connected { out_features: 1000 } }
      layer { name: "last" fully_connected { out_features: 3 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 4
    optimizer { sgd { momentum: 0.9 } })");
  const Graph graph = *Graph::FromModel(spec.model());
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  Plan plan{.mesh = Mesh({{"stage", 2}})};
  bool second = false;
  for (const GraphLayer& layer : graph.layers()) {
    second = second || layer.name == "large";
    plan.layers.push_back(
        *LayOut(layer, plan.mesh, {}, {{.axis = "stage", .coordinate = second ? 1 : 0}}));
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, index);
  const auto check = [&](int64_t first_limit, int64_t second_limit) {
    const std::vector<int64_t> limits = {first_limit, second_limit};
    return CheckPlacedMemory(spec, graph, index, plan, v1::Cluster::CPU, limits);
  };
  EXPECT_EQ(check(0, 0), absl::OkStatus()) << "unknown";
  EXPECT_EQ(check(10'000, 10'000'000), absl::OkStatus()) << "only the second rank has `large`";
  const absl::Status refused = check(10'000'000, 10'000);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 1 need"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("layer 'large'"));
}

}  // namespace
}  // namespace cadre
