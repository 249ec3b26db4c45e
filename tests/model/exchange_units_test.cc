#include "model/exchange_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/coding.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using Kind = ExchangeUnit::Kind;

// A weight of 3 x 3000, a bias of 3000; scale, shift, mean and variance of 3000; 3000 x 2 and 2.
ParameterIndex Index() {
  v1::Model model;
  model.mutable_input()->set_channels(3);
  model.mutable_input()->set_height(1);
  model.mutable_input()->set_width(1);
  v1::Layer& first = *model.add_layer();
  first.set_name("first");
  first.mutable_convolution()->set_out_channels(3000);
  first.mutable_convolution()->set_kernel(1);
  v1::Layer& norm = *model.add_layer();
  norm.set_name("norm");
  norm.mutable_batch_norm();
  v1::Layer& last = *model.add_layer();
  last.set_name("last");
  last.mutable_fully_connected()->set_out_features(2);
  v1::Layer& loss = *model.add_layer();
  loss.set_name("loss");
  loss.mutable_softmax_cross_entropy();
  return *ParameterIndex::FromModel(model);
}

TEST(ExchangeUnits, PartitionTheTensors) {
  const ParameterIndex index = Index();
  const ExchangeUnits units(index);
  int64_t next = 0;
  for (const ExchangeUnit& unit : units.all()) {
    EXPECT_EQ(unit.positions.begin, next);
    EXPECT_LE(unit.positions.size(), kUnitSize);
    next = unit.positions.end;
  }
  EXPECT_EQ(next, index.size());
  for (const Parameter& parameter : index.parameters()) {
    const Kind kind = IsStatistic(parameter.role)   ? Kind::kStatistic
                      : parameter.shape.rank() == 1 ? Kind::kExact
                                                    : Kind::kCoded;
    EXPECT_TRUE(units.IsBorder(parameter.offset));
    for (const ExchangeUnit& unit : units.In({parameter.offset, parameter.end()})) {
      EXPECT_EQ(unit.kind, kind) << parameter.name;
      EXPECT_EQ((unit.positions.begin - parameter.offset) % kUnitSize, 0);
    }
  }
}

TEST(ExchangeUnits, PartsAreCutAtBorders) {
  const ParameterIndex index = Index();
  const ExchangeUnits units(index);
  for (const int64_t parts : {1, 2, 3, 7, 40}) {
    int64_t next = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const Interval interval = units.PartOf(part, parts);
      EXPECT_EQ(interval.begin, next);
      EXPECT_TRUE(units.IsBorder(interval.end));
      EXPECT_LT(interval.size(), index.size() / parts + 2 * kUnitSize);
      next = interval.end;
    }
    EXPECT_EQ(next, index.size());
  }
  EXPECT_FALSE(units.IsBorder(1));
  EXPECT_EQ(units.BorderAfter(1), kUnitSize);
  EXPECT_TRUE(units.In({kUnitSize, kUnitSize}).empty());
}

TEST(Coding, HasDefaults) {
  v1::Coding coding;
  EXPECT_FALSE(CodingOf(coding).has_value());
  coding.set_codec(v1::CODEC_FP32);
  EXPECT_FALSE(CodingOf(coding).has_value());
  coding.set_codec(v1::CODEC_TOPK);
  EXPECT_EQ(CodingOf(coding)->keep(), 64U);
  EXPECT_EQ(CodingOf(coding)->error_feedback(), 0.95F);
  coding.set_codec(v1::CODEC_STAT2);
  coding.set_error_feedback(0);
  EXPECT_EQ(CodingOf(coding)->error_feedback(), 0);
}

}  // namespace
}  // namespace cadre
