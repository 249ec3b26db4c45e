#include "cli/pin_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(PinFlagsTest, Mesh) {
  const auto mesh = ParseMesh("data=4,model=2");
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  ASSERT_EQ(mesh->size(), 2u);
  EXPECT_EQ((*mesh)[0].name(), "data");
  EXPECT_EQ((*mesh)[0].size(), 4u);
  EXPECT_EQ((*mesh)[1].name(), "model");
  EXPECT_EQ((*mesh)[1].size(), 2u);
}

TEST(PinFlagsTest, Layers) {
  const auto pins = ParseLayerPins("fc6=model,conv1=data");
  ASSERT_TRUE(pins.ok()) << pins.status();
  ASSERT_EQ(pins->size(), 2u);
  EXPECT_EQ((*pins)[1].layer(), "conv1");
  EXPECT_EQ((*pins)[1].parallelism(), v1::LayerPin::DATA);
}

TEST(PinFlagsTest, RefusesOtherTexts) {
  for (const char* text : {"", "data", "data=", "=4", "data=4,", "data=0", "data=-1", "data=x",
                           "data=4294967296", "data=2,data=2"}) {
    const auto mesh = ParseMesh(text);
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(mesh.status().message(), HasSubstr("--mesh")) << text;
  }
  for (const char* text : {"", "fc6", "fc6=", "=model", "fc6=model,fc6=data"}) {
    const auto pins = ParseLayerPins(text);
    EXPECT_EQ(pins.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(pins.status().message(), HasSubstr("--layer")) << text;
  }
}

}  // namespace
}  // namespace cadre
