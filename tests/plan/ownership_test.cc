// Ownership under random plans.
#include "plan/ownership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/model/testing.h"

namespace cadre {
namespace {

// Every mesh with more than one rank leaves a remainder in some extents. All kinds of layers with
// parameters.
constexpr char kUnevenImages[] = R"(model {
  input { channels: 3 height: 5 width: 3 }
  layer { name: "conv" convolution { out_channels: 5 kernel: 2 } }
  layer { name: "grouped" convolution { out_channels: 5 kernel: 1 groups: 5 } }
  layer { name: "norm" batch_norm {} }
  layer { name: "flat" flatten {} }
  layer { name: "fc1" fully_connected { out_features: 7 } }
  layer { name: "fc2" fully_connected { out_features: 3 no_bias: true } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

constexpr char kUnevenTokens[] = R"(model {
  tokens { length: 5 }
  layer { name: "embedding" embedding { vocabulary: 7 features: 6 positions: true } }
  layer { name: "norm" layer_norm {} }
  layer { name: "attention" attention { heads: 3 } }
  layer { name: "fc" fully_connected { out_features: 7 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

Plan RandomPlan(const Graph& graph, const ParameterIndex& index, const Mesh& mesh,
                std::mt19937& random) {
  Plan plan;
  plan.mesh = mesh;
  for (const GraphLayer& layer : graph.layers()) {
    // Some layers are at random coordinates of some axes, which do not split them.
    std::vector<Mesh::Axis> axes = mesh.axes();
    std::vector<AxisCoordinate> at;
    for (Mesh::Axis& axis : axes) {
      if (random() % 3 != 0) continue;
      at.push_back({.axis = axis.name});
      at.back().coordinate = random() % axis.size;
      axis.size = 1;
    }
    const auto legal = LegalSplits(layer, Mesh(axes));
    plan.layers.push_back(*LayOut(layer, mesh, legal[random() % legal.size()], at));
  }
  plan.buckets = MakeBuckets(plan.layers, mesh, index, random() % 2 == 0 ? 0 : 40);
  return plan;
}

// Expects that every element of the model has one owner, at the right offset of its buffer.
void ExpectOwnedOnce(const Plan& plan, const ParameterIndex& index) {
  std::vector<int> owners(index.size(), 0);
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const std::vector<BucketOwnership> buckets = OwnershipOf(plan, index, rank);
    ASSERT_EQ(buckets.size(), plan.buckets.size());
    for (const BucketOwnership& bucket : buckets) {
      // Fills the buffer with positions in the parameter order.
      std::vector<float> buffer(bucket.size, -1.0F);
      int64_t offset = 0;
      for (const LocalParameter& local : bucket.parameters) {
        EXPECT_EQ(local.offset, offset);
        offset += local.size();
        const Parameter& parameter = index[local.parameter];
        std::vector<float> whole(parameter.shape.elements());
        for (size_t i = 0; i < whole.size(); ++i) {
          whole[i] = parameter.offset + i;
        }
        CopyBox(whole, Box::Whole(parameter.shape),
                std::span(buffer).subspan(local.offset, local.size()), local.box, local.box);
      }
      EXPECT_EQ(offset, bucket.size);
      int64_t at = bucket.slice_begin();
      for (const OwnedInterval& piece : bucket.owned) {
        EXPECT_EQ(piece.offset, at) << "intervals cover the slice in order";
        EXPECT_GT(piece.positions.size(), 0);
        at += piece.positions.size();
        const Parameter& parameter = index[piece.parameter];
        EXPECT_GE(piece.positions.begin, parameter.offset);
        EXPECT_LE(piece.positions.end, parameter.end());
        for (int64_t i = 0; i < piece.positions.size(); ++i) {
          EXPECT_EQ(buffer[piece.offset + i], piece.positions.begin + i);
          ++owners[piece.positions.begin + i];
        }
      }
      EXPECT_EQ(at, bucket.slice_end());
    }
  }
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), index.size());
}

// Expects that the ranks of a reduce-scatter have equal slice borders.
void ExpectPeersAgree(const Plan& plan, const ParameterIndex& index) {
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const auto mine = OwnershipOf(plan, index, rank);
    for (size_t b = 0; b < mine.size(); ++b) {
      const std::vector<std::string> axes = plan.buckets[b].owner_axes();
      const std::vector<int> peers = plan.mesh.Peers(rank, axes);
      const int64_t count = std::ssize(peers);
      ASSERT_EQ(mine[b].borders.size(), peers.size() + 1);
      EXPECT_EQ(mine[b].borders.front(), 0);
      EXPECT_EQ(mine[b].borders.back(), mine[b].size);
      for (int i = 0; i < std::ssize(peers); ++i) {
        const auto theirs = OwnershipOf(plan, index, peers[i]);
        EXPECT_EQ(theirs[b].borders, mine[b].borders);
        EXPECT_EQ(theirs[b].own_slice, i);
        const int64_t slice = theirs[b].slice_end() - theirs[b].slice_begin();
        EXPECT_LE(std::abs(slice * count - mine[b].size), count) << "slices are near-equal";
        for (size_t p = 0; p < mine[b].parameters.size(); ++p) {
          EXPECT_EQ(theirs[b].parameters[p].box, mine[b].parameters[p].box);
        }
      }
    }
  }
}

class RandomPlans : public ::testing::TestWithParam<Mesh> {};

TEST_P(RandomPlans, OwnEveryElementOnce) {
  std::mt19937 random(11);
  for (const char* text : {kUnevenImages, kUnevenTokens}) {
    const Graph graph = *Graph::FromModel(testing::SpecOf(text).model());
    const ParameterIndex index = ParameterIndex::FromGraph(graph);
    for (int round = 0; round < 25; ++round) {
      const Plan plan = RandomPlan(graph, index, GetParam(), random);
      ASSERT_EQ(CheckPlan(plan, graph, index), absl::OkStatus());
      ExpectOwnedOnce(plan, index);
      ExpectPeersAgree(plan, index);
      if (HasFailure()) {
        ADD_FAILURE() << PrintPlan(plan, graph, index);
        return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, RandomPlans,
                         ::testing::Values(Mesh(), Mesh({{"a", 2}}), Mesh({{"a", 3}}),
                                           Mesh({{"a", 5}}), Mesh({{"a", 2}, {"b", 2}}),
                                           Mesh({{"a", 3}, {"b", 2}}), Mesh({{"a", 1}, {"b", 4}}),
                                           Mesh({{"a", 2}, {"b", 2}, {"c", 2}}),
                                           // More ranks than there are rows of most parameters.
                                           Mesh({{"a", 16}})),
                         [](const auto& info) {
                           std::string name = "Mesh";
                           for (const auto& axis : info.param.axes())
                             name += axis.name + std::to_string(axis.size);
                           return name;
                         });

// The axis `model` splits the columns of the weight [4, 6]. The two ranks along `data` hold the
// same three columns, and each owns half of their rows.
TEST(OwnershipTest, RankOwnsHalfTheRowsOfItsColumns) {
  const Graph graph = *Graph::FromModel(testing::SpecOf(R"(model {
    input { channels: 6 height: 1 width: 1 }
    layer { name: "flat" flatten {} }
    layer { name: "fc" fully_connected { out_features: 4 no_bias: true } }
    layer { name: "loss" softmax_cross_entropy {} }
  })")
                                            .model());
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  Plan plan;
  plan.mesh = Mesh({{"data", 2}, {"model", 2}});
  const std::vector<std::vector<IndexSplit>> splits = {
      {}, {{"samples", {"data"}}, {"in", {"model"}}}, {}};
  for (int l = 0; l < 3; ++l) {
    plan.layers.push_back(*LayOut(graph[l], plan.mesh, splits[l]));
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, index);
  // Rank 3 is data 1, model 1: the second half of the rows of columns 3 to 5.
  const auto buckets = OwnershipOf(plan, index, 3);
  ASSERT_EQ(buckets.size(), 1U);
  EXPECT_EQ(buckets[0].size, 12);
  EXPECT_THAT(buckets[0].borders, ::testing::ElementsAre(0, 6, 12));
  EXPECT_EQ(buckets[0].own_slice, 1);
  ASSERT_EQ(buckets[0].owned.size(), 2U);
  EXPECT_EQ(buckets[0].owned[0].positions, (Interval{15, 18}));
  EXPECT_EQ(buckets[0].owned[0].offset, 6);
  EXPECT_EQ(buckets[0].owned[1].positions, (Interval{21, 24}));
  EXPECT_EQ(buckets[0].owned[1].offset, 9);
}

}  // namespace
}  // namespace cadre
