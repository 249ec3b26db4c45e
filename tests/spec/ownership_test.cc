// Who holds and owns what, for the plans that the planner makes and some that it does not.
#include "spec/ownership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "tests/spec/testing.h"

namespace cadre {
namespace {

// Extents that no mesh divides: 5 channels, 7, 11 and 3 features.
constexpr char kUneven[] = R"(model {
  input { channels: 2 height: 5 width: 3 }
  layer { name: "conv" convolution { out_channels: 5 kernel: 2 } }
  layer { name: "fc1" fully_connected { out_features: 7 } }
  layer { name: "fc2" fully_connected { out_features: 11 } }
  layer { name: "fc3" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

std::vector<std::string> Present(const Mesh& mesh, const std::vector<std::string>& axes) {
  std::vector<std::string> present;
  for (const std::string& axis : axes) {
    if (mesh.Size(axis) > 1) present.push_back(axis);
  }
  return present;
}

// Every layer over {data, model}; one bucket for the convolution, `per_bucket` layers in the
// others.
Plan PlanOf(const Graph& graph, int data, int model, int per_bucket) {
  Plan plan;
  plan.mesh = Mesh({{"data", data}, {"model", model}});
  const auto all = Present(plan.mesh, {"data", "model"});
  const auto by_data = Present(plan.mesh, {"data"});
  const auto by_model = Present(plan.mesh, {"model"});
  for (const GraphLayer& node : graph.layers()) {
    LayerLayouts layer{.name = node.name};
    if (node.kind == LayerKind::kConvolution) {
      layer.input = layer.output = Layout::Split(0, all);
      layer.parameters.assign(2, Layout::Replicated());
    } else {
      layer.input = Layout::Split(0, by_data);
      if (node.has_parameters()) {
        layer.output = Layout{.split = {by_data, by_model}};
        layer.parameters.assign(2, Layout::Split(0, by_model));
      }
    }
    plan.layers.push_back(layer);
  }
  for (int first = 2; first < 8; first += 2 * per_bucket) {
    Bucket bucket{.axes = by_data, .algorithm = "ring"};
    for (int p = first; p < std::min(8, first + 2 * per_bucket); ++p)
      bucket.parameters.push_back(p);
    plan.buckets.push_back(bucket);
  }
  plan.buckets.push_back({{0, 1}, all, "ring"});
  return plan;
}

class EveryMesh : public ::testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  EveryMesh()
      : model_(testing::SpecOf(kUneven).model()),
        graph_(*Graph::FromModel(model_)),
        index_(*ParameterIndex::FromModel(model_)) {
    const auto [data, model, per_bucket] = GetParam();
    plan_ = PlanOf(graph_, data, model, per_bucket);
  }
  void SetUp() override { ASSERT_EQ(CheckPlan(plan_, graph_, index_), absl::OkStatus()); }

  const v1::Model model_;
  const Graph graph_;
  const ParameterIndex index_;
  Plan plan_;
};

TEST_P(EveryMesh, EveryElementIsOwnedOnce) {
  std::vector<int> owners(static_cast<size_t>(index_.size()), 0);
  for (int rank = 0; rank < plan_.mesh.ranks(); ++rank) {
    for (const BucketOwnership& bucket : OwnershipOf(plan_, index_, rank)) {
      for (const OwnedPiece& piece : bucket.owned) {
        for (int64_t i = piece.flat.begin; i < piece.flat.end; ++i)
          ++owners[static_cast<size_t>(i)];
      }
    }
  }
  EXPECT_THAT(owners, ::testing::Each(1));
}

TEST_P(EveryMesh, LocalPartsAreThoseOfTheLayout) {
  for (int rank = 0; rank < plan_.mesh.ranks(); ++rank) {
    const auto buckets = OwnershipOf(plan_, index_, rank);
    ASSERT_EQ(buckets.size(), plan_.buckets.size());
    for (size_t b = 0; b < buckets.size(); ++b) {
      int64_t offset = 0;
      ASSERT_EQ(buckets[b].parameters.size(), plan_.buckets[b].parameters.size());
      for (size_t i = 0; i < buckets[b].parameters.size(); ++i) {
        const LocalParameter& local = buckets[b].parameters[i];
        ASSERT_EQ(local.parameter, plan_.buckets[b].parameters[i]);
        const Parameter& parameter = index_[local.parameter];
        const LayerLayouts& layer = plan_.layers[static_cast<size_t>(parameter.layer)];
        const Box box = LocalBox(parameter.shape, layer.parameters[parameter.is_bias ? 1 : 0],
                                 plan_.mesh, rank);
        EXPECT_EQ(local.box, box);
        EXPECT_EQ(local.flat.size(), box.shape().elements());
        EXPECT_GE(local.flat.begin, parameter.offset);
        EXPECT_LE(local.flat.end, parameter.end());
        const int64_t row = parameter.shape.elements() / parameter.shape[0];
        EXPECT_EQ(local.flat.begin, parameter.offset + box.begin[0] * row);
        EXPECT_EQ(local.offset, offset);
        offset += local.flat.size();
      }
      EXPECT_EQ(buckets[b].size, offset);
    }
  }
}

TEST_P(EveryMesh, PiecesLieWhereTheBufferHasThem) {
  for (int rank = 0; rank < plan_.mesh.ranks(); ++rank) {
    for (const BucketOwnership& bucket : OwnershipOf(plan_, index_, rank)) {
      int64_t at = bucket.slice_begin();
      for (const OwnedPiece& piece : bucket.owned) {
        EXPECT_EQ(piece.offset, at) << "pieces fill the slice without gaps";
        at += piece.flat.size();
        bool found = false;
        for (const LocalParameter& local : bucket.parameters) {
          if (local.parameter != piece.parameter) continue;
          found = true;
          EXPECT_GE(piece.flat.begin, local.flat.begin);
          EXPECT_LE(piece.flat.end, local.flat.end);
          EXPECT_EQ(piece.offset - local.offset, piece.flat.begin - local.flat.begin);
        }
        EXPECT_TRUE(found);
      }
      EXPECT_EQ(at, bucket.slice_end());
    }
  }
}

// Peers must cut their common buffer at the same borders, or a reduce-scatter would mix elements.
TEST_P(EveryMesh, PeersAgreeOnTheBorders) {
  for (int rank = 0; rank < plan_.mesh.ranks(); ++rank) {
    const auto mine = OwnershipOf(plan_, index_, rank);
    for (size_t b = 0; b < mine.size(); ++b) {
      const std::vector<int> peers = plan_.mesh.Peers(rank, plan_.buckets[b].axes);
      ASSERT_EQ(mine[b].borders.size(), peers.size() + 1);
      EXPECT_EQ(mine[b].borders.front(), 0);
      EXPECT_EQ(mine[b].borders.back(), mine[b].size);
      for (size_t i = 0; i < peers.size(); ++i) {
        const auto theirs = OwnershipOf(plan_, index_, peers[i]);
        EXPECT_EQ(theirs[b].borders, mine[b].borders);
        EXPECT_EQ(theirs[b].mine, static_cast<int>(i));
        const int64_t slice = theirs[b].slice_end() - theirs[b].slice_begin();
        EXPECT_LE(std::abs(slice * static_cast<int64_t>(peers.size()) - mine[b].size),
                  static_cast<int64_t>(peers.size()))
            << "slices are near-equal";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, EveryMesh,
    ::testing::Values(std::tuple(1, 1, 1), std::tuple(1, 1, 3), std::tuple(2, 1, 2),
                      std::tuple(1, 2, 1), std::tuple(3, 1, 3), std::tuple(1, 3, 2),
                      std::tuple(4, 1, 1), std::tuple(2, 2, 3), std::tuple(1, 4, 1),
                      std::tuple(6, 1, 2), std::tuple(3, 2, 1), std::tuple(2, 3, 3),
                      std::tuple(1, 6, 2),
                      // More ranks than rows of fc3, some of which hold nothing of it.
                      std::tuple(1, 16, 1), std::tuple(16, 1, 1)),
    [](const auto& info) {
      return "data" + std::to_string(std::get<0>(info.param)) + "model" +
             std::to_string(std::get<1>(info.param)) + "layers" +
             std::to_string(std::get<2>(info.param));
    });

}  // namespace
}  // namespace cadre
