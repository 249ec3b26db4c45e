#include "plan/layer_part.h"

#include <gtest/gtest.h>

#include <set>

namespace cadre {
namespace {

v1::LayerTime Time(const char* layer, uint32_t samples, uint32_t outs = 0) {
  v1::LayerTime time;
  time.set_layer(layer);
  time.set_samples(samples);
  time.set_outs(outs);
  time.set_forward(1);
  return time;
}

TEST(LayerPartKeyTest, DependsOnLayerAndPart) {
  v1::LayerTime slower = Time("conv", 8, 2);
  slower.set_backward(3);
  EXPECT_EQ(KeyOf(Time("conv", 8, 2)), KeyOf(slower));
  EXPECT_NE(KeyOf(Time("conv", 8, 2)), KeyOf(Time("conv", 8, 4)));
  EXPECT_NE(KeyOf(Time("conv", 8)), KeyOf(Time("conv", 4)));
  EXPECT_NE(KeyOf(Time("conv", 8)), KeyOf(Time("norm", 8)));
}

TEST(LayerPartKeyTest, ZeroMeansOnePart) {
  EXPECT_EQ(KeyOf(Time("conv", 8, 0)), KeyOf(Time("conv", 8, 1)));
}

TEST(LayerPartKeyTest, RoundTrip) {
  const LayerPartKey key{"fc", {.samples = 5, .rows = 2, .outs = 3, .ins = 4}};
  const v1::LayerTime time = TimeOf(key);
  EXPECT_EQ(KeyOf(time), key);
  EXPECT_EQ(time.rows(), 2u);
  EXPECT_EQ(time.outs(), 3u);
  EXPECT_EQ(time.ins(), 4u);
  EXPECT_EQ(time.forward(), 0);
}

TEST(LayerPartKeyTest, KeysOfLayerAreAdjacent) {
  const std::set<LayerPartKey> keys = {KeyOf(Time("b", 1)), KeyOf(Time("a", 9)),
                                       KeyOf(Time("b", 1, 2)), KeyOf(Time("c", 1))};
  auto at = keys.lower_bound({.layer = "b", .part = {}});
  ASSERT_NE(at, keys.end());
  EXPECT_EQ(at->layer, "b");
  EXPECT_EQ((++at)->layer, "b");
  EXPECT_EQ((++at)->layer, "c");
}

}  // namespace
}  // namespace cadre
