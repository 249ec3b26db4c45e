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

// However the model is cut, each part has the same share of the same fragments.
TEST(ExchangeUnits, FragmentsPartitionEveryPart) {
  const ParameterIndex index = Index();
  const ExchangeUnits units(index);
  for (const uint32_t fragments : {1U, 2U, 3U, 64U}) {
    std::vector<uint32_t> fragment_of(index.size());
    for (uint32_t fragment = 1; fragment <= fragments; ++fragment) {
      int64_t end = -1;
      for (const Interval& interval : units.FragmentIn({0, index.size()}, fragment, fragments)) {
        EXPECT_GT(interval.begin, end) << "adjacent intervals are one";
        EXPECT_FALSE(interval.empty());
        end = interval.end;
        for (int64_t p = interval.begin; p < interval.end; ++p) {
          EXPECT_EQ(std::exchange(fragment_of[p], fragment), 0U);
        }
      }
      for (int64_t part = 0; part < 5; ++part) {
        const Interval whole = units.PartOf(part, 5);
        std::vector<bool> in(whole.size());
        for (const Interval& interval : units.FragmentIn(whole, fragment, fragments)) {
          for (int64_t p = interval.begin; p < interval.end; ++p) in[p - whole.begin] = true;
        }
        for (int64_t p = whole.begin; p < whole.end; ++p) {
          EXPECT_EQ(in[p - whole.begin], fragment_of[p] == fragment) << p;
        }
      }
    }
    EXPECT_THAT(fragment_of, ::testing::Each(::testing::Ge(1U)));
  }
  EXPECT_EQ(units.FragmentIn({kUnitSize, index.size()}, 0, 3),
            (std::vector<Interval>{{kUnitSize, index.size()}}));
}

// The stripes of a model of many units are longer than a unit, and all fragments have as many.
TEST(ExchangeUnits, FragmentsHaveEqualSizes) {
  v1::Model model;
  model.mutable_tokens()->set_length(8);
  v1::Layer& embedding = *model.add_layer();
  embedding.set_name("embedding");
  embedding.mutable_embedding()->set_vocabulary(4096);
  embedding.mutable_embedding()->set_features(1024);
  v1::Layer& loss = *model.add_layer();
  loss.set_name("loss");
  loss.mutable_softmax_cross_entropy();
  const ParameterIndex index = *ParameterIndex::FromModel(model);
  const ExchangeUnits units(index);
  for (const uint32_t fragments : {2U, 4U}) {
    for (uint32_t fragment = 1; fragment <= fragments; ++fragment) {
      int64_t size = 0;
      const auto intervals = units.FragmentIn({0, index.size()}, fragment, fragments);
      for (const Interval& interval : intervals) size += interval.size();
      EXPECT_NEAR(static_cast<double>(size), static_cast<double>(index.size() / fragments),
                  16 * kUnitSize);
      EXPECT_GT(intervals.size(), 30U);
    }
  }
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
