#include "model/parameter_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::DemoSpec;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// These layers on two values.
v1::Model WithLayers(const std::string& layers) {
  return testing::SpecOf(absl::StrCat("model { input { channels: 1 height: 1 width: 2 }", layers,
                                      "layer { name: 'loss' softmax_cross_entropy {} } }"))
      .model();
}

TEST(ParameterIndexTest, CountsTheDemo) {
  const auto index = ParameterIndex::FromModel(DemoSpec().model());
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->size(), 3'241'354);
  std::vector<std::string> names;
  std::vector<int64_t> offsets;
  for (const Parameter& parameter : index->parameters()) {
    names.push_back(parameter.name);
    offsets.push_back(parameter.offset);
  }
  EXPECT_THAT(names, ElementsAre("conv1/weight", "conv1/bias", "conv2/weight", "conv2/bias",
                                 "fc1/weight", "fc1/bias", "fc2/weight", "fc2/bias"));
  EXPECT_THAT(offsets, ElementsAre(0, 288, 320, 18752, 18816, 3230080, 3231104, 3241344));
  EXPECT_EQ((*index)[0].initial_stddev, std::sqrt(2.0 / 9));
  EXPECT_EQ((*index)[4].layer, 7) << "layer 6 is the flattening before fc1";
  EXPECT_THAT(index->OfLayer(7), ElementsAre(4, 5));
  EXPECT_THAT(index->OfLayer(6), IsEmpty());
  EXPECT_THAT(index->OfLayer(99), IsEmpty());
  EXPECT_EQ((*index)[5].number, 1);
  EXPECT_EQ((*index)[5].role, ParameterRole::kBias);
  EXPECT_EQ(index->Find("fc1/weight").value(), 4);
  EXPECT_EQ(index->Find("fc3/weight").status().code(), absl::StatusCode::kNotFound);
}

TEST(ParameterIndexTest, NoParameters) {
  const auto index = ParameterIndex::FromModel(WithLayers("layer { name: 'f' flatten {} }"));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->size(), 0);
  EXPECT_THAT(index->RangesOf(0, 0), IsEmpty());
}

// All intervals of a small model.
TEST(ParameterIndexTest, RangesCoverInterval) {
  const auto index = ParameterIndex::FromModel(
      WithLayers("layer { name: 'a' fully_connected { out_features: 3 } }"
                 "layer { name: 'b' fully_connected { out_features: 2 } }"));
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->size(), 6 + 3 + 6 + 2);
  for (int64_t begin = 0; begin <= index->size(); ++begin) {
    for (int64_t end = begin; end <= index->size(); ++end) {
      int64_t at = begin;
      for (const v1::Range& range : index->RangesOf(begin, end)) {
        const Parameter& parameter = (*index)[range.tensor()];
        EXPECT_EQ(parameter.offset + range.begin(), at);
        EXPECT_LT(range.begin(), range.end());
        at = parameter.offset + range.end();
        EXPECT_LE(at, parameter.end());
      }
      EXPECT_EQ(at, end);
    }
  }
}

}  // namespace
}  // namespace cadre
