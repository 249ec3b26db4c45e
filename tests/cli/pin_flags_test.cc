#include "cli/pin_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(PinFlagsTest, ParsesNamesAndValues) {
  const auto mesh = ParseMesh("data=4,model=2");
  ASSERT_TRUE(mesh.ok() && mesh->size() == 2) << mesh.status();
  EXPECT_EQ((*mesh)[1].name(), "model");
  EXPECT_EQ((*mesh)[1].size(), 2u);
  const auto pins = ParseLayerPins("fc6=model,conv1=data");
  ASSERT_TRUE(pins.ok() && pins->size() == 2) << pins.status();
  EXPECT_EQ((*pins)[1].layer(), "conv1");
  EXPECT_EQ((*pins)[1].parallelism(), v1::LayerPin::DATA);
}

TEST(PinFlagsTest, RejectsOtherTexts) {
  const auto expect_rejected = [](const absl::Status& status, const char* flag) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(flag));
  };
  for (const char* text : {"", "data", "data=", "=4", "data=4,", "data=0", "data=-1", "data=x",
                           "data=4294967296", "data=2,data=2"}) {
    expect_rejected(ParseMesh(text).status(), "--mesh");
  }
  for (const char* text : {"", "fc6", "fc6=", "=model", "fc6=model,fc6=data", "fc6=sideways"}) {
    expect_rejected(ParseLayerPins(text).status(), "--layer");
  }
}

}  // namespace
}  // namespace cadre
