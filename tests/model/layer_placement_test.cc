#include "model/layer_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::SpecOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// a -> {left/x, right/x} -> join -> fc.
constexpr char kBranches[] = R"(model {
  input { channels: 2 height: 4 width: 4 }
  block {
    name: "branch"
    layer { name: "conv" convolution { out_channels: 2 kernel: 1 } }
    layer { name: "relu" relu {} }
  }
  layer { name: "a" relu {} }
  layer { name: "left" input: "a" use { block: "branch" } }
  layer { name: "right" input: "a" use { block: "branch" } }
  layer { name: "join" input: "left" input: "right" add {} }
  layer { name: "fc" fully_connected { out_features: 2 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
)";

class LayerPlacementTest : public ::testing::Test {
 protected:
  // Returns the error, or "".
  std::string Place(const std::string& cluster) {
    const v1::RunSpec spec = SpecOf(std::string(kBranches) + "cluster {" + cluster + "}");
    graph_ = *Graph::FromModel(spec.model());
    const auto error = PlaceLayers(spec.cluster(), graph_, &placed_);
    return error ? error->text : "";
  }

  std::string At(const std::string& layer) const {
    for (int l = 0; l < graph_.size(); ++l) {
      if (graph_[l].name == layer) return ToText(placed_[l]);
    }
    return "no such layer";
  }

  Graph graph_;
  LayerCoordinates placed_;
};

TEST_F(LayerPlacementTest, WithoutPins) {
  EXPECT_EQ(Place("mesh { name: 'data' size: 2 } layer { layer: 'fc' parallelism: MODEL }"), "");
  EXPECT_THAT(placed_, IsEmpty());
}

TEST_F(LayerPlacementTest, StagesWithoutPinsAreBalanced) {
  EXPECT_EQ(Place("mesh { name: 'stage' size: 2 }"), "");
  EXPECT_EQ(At("left/conv"), "stage@0");
  EXPECT_EQ(At("right/conv"), "stage@1");
  EXPECT_EQ(At("loss"), "stage@1");
  EXPECT_EQ(Place("mesh { name: 'stage' size: 1 }"), "");
  EXPECT_THAT(placed_, IsEmpty());
  EXPECT_EQ(Place("mesh { name: 'stage' size: 12 }"), "has 12 stages, but the model has 9 layers");
}

TEST_F(LayerPlacementTest, StagesFollowWhatTheyRead) {
  EXPECT_EQ(Place("mesh { name: 'stage' size: 3 }"
                  "layer { layer: 'right' at { axis: 'stage' coordinate: 1 } }"
                  "layer { layer: 'loss' at { axis: 'stage' coordinate: 2 } }"),
            "");
  EXPECT_EQ(At("a"), "stage@0");
  EXPECT_EQ(At("left/conv"), "stage@0");
  EXPECT_EQ(At("right/conv"), "stage@1") << "all layers of the block";
  EXPECT_EQ(At("right/relu"), "stage@1");
  EXPECT_EQ(At("join"), "stage@1") << "the latest that it reads";
  EXPECT_EQ(At("loss"), "stage@2");
}

TEST_F(LayerPlacementTest, OtherAxesPlacePinnedLayersOnly) {
  EXPECT_EQ(Place("mesh { name: 'model' size: 2 }"
                  "layer { layer: 'right' at { axis: 'model' coordinate: 1 } }"
                  "layer { layer: 'right/relu' at { axis: 'model' coordinate: 0 } }"),
            "");
  EXPECT_EQ(At("a"), "");
  EXPECT_EQ(At("right/conv"), "model@1");
  EXPECT_EQ(At("right/relu"), "model@0") << "the longest name";
}

TEST_F(LayerPlacementTest, EarlierStageIsAnError) {
  EXPECT_THAT(Place("mesh { name: 'stage' size: 2 }"
                    "layer { layer: 'left' at { axis: 'stage' coordinate: 1 } }"
                    "layer { layer: 'join' at { axis: 'stage' coordinate: 0 } }"),
              HasSubstr("places layer 'join' at stage@0, but it reads layer 'left/relu' at "
                        "stage@1"));
}

TEST_F(LayerPlacementTest, UnknownCoordinatesAreErrors) {
  EXPECT_THAT(Place("mesh { name: 'stage' size: 2 }"
                    "layer { layer: 'fc' at { axis: 'stage' coordinate: 2 } }"),
              HasSubstr("'fc' at stage@2, which does not exist"));
  EXPECT_THAT(Place("layer { layer: 'fc' at { axis: 'stage' } }"),
              HasSubstr("'fc' at stage@0, but cluster.mesh has no axis 'stage'"));
  EXPECT_THAT(Place("mesh { name: 'stage' size: 2 }"
                    "layer { layer: 'fc' at { axis: 'stage' } at { axis: 'stage' } }"),
              HasSubstr("'fc' twice on axis stage"));
  EXPECT_THAT(Place("mesh { name: 'stage' size: 2 }"
                    "layer { layer: 'rig' at { axis: 'stage' } }"),
              HasSubstr("places 'rig', which is neither a layer nor a block of layers"));
}

}  // namespace
}  // namespace cadre
