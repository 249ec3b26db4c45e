#include "model/initial_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/model/testing.h"

namespace cadre {
namespace {

class InitialValueTest : public ::testing::Test {
 protected:
  InitialValueTest() : index_(*ParameterIndex::FromModel(testing::DemoSpec().model())) {}

  std::vector<float> Values(uint64_t seed, int64_t begin, int64_t end) const {
    std::vector<float> values(end - begin, -1.0F);
    FillInitialValues(index_, seed, begin, values);
    return values;
  }

  const ParameterIndex index_;
};

// These values must never change: they are version 0 of every existing run.
TEST_F(InitialValueTest, KnownValues) {
  EXPECT_THAT(Values(1, 0, 3), ::testing::ElementsAre(0.17303136F, 0.39568451F, 0.478571951F));
  EXPECT_THAT(Values(1, 18816, 18819),
              ::testing::ElementsAre(0.00374682806F, -0.0120192366F, -0.0322840437F));
  EXPECT_THAT(Values(7, 3231104, 3231106), ::testing::ElementsAre(0.00277817785F, -0.0143858921F));
}

TEST_F(InitialValueTest, DoesNotDependOnPartition) {
  // The convolutions and some of fc1.
  const int64_t size = 50'000;
  const std::vector<float> whole = Values(5, 0, size);
  for (const int64_t parts : {2, 3, 7, 1000}) {
    std::vector<float> joined;
    for (int64_t i = 0; i < parts; ++i) {
      const std::vector<float> part = Values(5, size * i / parts, size * (i + 1) / parts);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(joined == whole) << parts << " parts";
  }
  // One element at a time, across the boundary between two parameters.
  for (int64_t i = 280; i < 330; ++i) {
    EXPECT_EQ(Values(5, i, i + 1)[0], whole[i]) << i;
  }
}

TEST_F(InitialValueTest, DependsOnSeedAndTensor) {
  EXPECT_NE(Values(1, 0, 288), Values(2, 0, 288));
  const std::vector<float> conv = Values(1, 0, 100);
  std::vector<float> fc = Values(1, 18816, 18916);
  const float ratio = std::sqrt(3136.0F / 9.0F);
  for (float& value : fc) value *= ratio;
  EXPECT_NE(conv, fc) << "two tensors share their numbers";
}

// Mean and variance of N normal values of standard deviation s: the sample mean is within
// 5 s / sqrt(N) and the variance within 5 s^2 sqrt(2 / N), except for one seed in a million.
TEST_F(InitialValueTest, MomentsMatchLayer) {
  for (const Parameter& parameter : index_.parameters()) {
    SCOPED_TRACE(parameter.name);
    const std::vector<float> values = Values(11, parameter.offset, parameter.end());
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    if (parameter.role == ParameterRole::kBias) {
      EXPECT_EQ(squares, 0.0);
      continue;
    }
    const auto count = static_cast<double>(values.size());
    const double gain = parameter.name == "fc2/weight" ? 1.0 : 2.0;
    const auto fan_in = static_cast<double>(parameter.shape.elements() / parameter.shape[0]);
    const double variance = gain / fan_in;
    EXPECT_NEAR(sum / count, 0.0, 5 * std::sqrt(variance / count));
    EXPECT_NEAR(squares / count, variance, 5 * variance * std::sqrt(2 / count));
  }
}

// Norms begin as the identity, running statistics with mean 0 and variance 1.
TEST(InitialValueOfNormsTest, AreConstants) {
  const auto index = ParameterIndex::FromModel(testing::SpecOf(R"(model {
    input { channels: 3 height: 2 width: 2 }
    layer { name: "bn" batch_norm {} }
    layer { name: "pool" global_average_pool {} }
    layer { name: "ln" layer_norm {} }
    layer { name: "loss" softmax_cross_entropy {} }
  })")
                                                   .model());
  ASSERT_TRUE(index.ok()) << index.status();
  std::vector<float> values(18, -1.0F);
  FillInitialValues(*index, 3, 0, values);
  EXPECT_THAT(values, ::testing::ElementsAre(1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1,  // bn
                                             1, 1, 1, 0, 0, 0));                  // ln
}

}  // namespace
}  // namespace cadre
