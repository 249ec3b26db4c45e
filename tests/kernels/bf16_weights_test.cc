#include "kernels/cpu/bf16_weights.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace cadre {
namespace {

class Bf16WeightsTest : public ::testing::Test {
 protected:
  // The first element of the copy of memory_[begin, begin + size); -1 if there is none.
  float First(size_t begin, size_t size) {
    const ConstValues copy = weights_.Find(std::span<const float>(memory_).subspan(begin, size),
                                           [this](std::span<const float> from, Values to) {
                                             ++conversions_;
                                             for (size_t i = 0; i < from.size(); ++i) {
                                               Data<Bf16>(to)[i] = RoundToBf16(from[i]);
                                             }
                                           });
    return copy.empty() ? -1 : ToFloat(Data<Bf16>(copy)[0]);
  }
  std::span<const float> Part(size_t begin, size_t size) {
    return std::span<const float>(memory_).subspan(begin, size);
  }

  std::vector<float> memory_ = std::vector<float>(100, 1.0F);
  Bf16Weights weights_;
  int conversions_ = 0;
};

TEST_F(Bf16WeightsTest, CopiesOnlyAnnouncedParameters) {
  weights_.Announce(Part(10, 50));
  EXPECT_EQ(First(10, 50), 1);
  EXPECT_EQ(First(20, 40), 1);
  EXPECT_EQ(First(9, 10), -1);
  EXPECT_EQ(First(20, 41), -1);
  EXPECT_EQ(First(60, 5), -1);
  EXPECT_EQ(First(10, 0), -1);
  weights_.Clear();
  EXPECT_EQ(First(10, 50), -1);
}

TEST_F(Bf16WeightsTest, ConvertsAgainOnlyAfterAChange) {
  weights_.Announce(Part(0, 100));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(First(40, 20), 1);
  EXPECT_EQ(conversions_, 1);
  memory_[40] = 2;
  weights_.Changed(Part(30, 10));
  weights_.Changed(Part(60, 10));
  EXPECT_EQ(First(40, 20), 1) << "another part has changed";
  weights_.Changed(Part(40, 1));
  EXPECT_EQ(First(40, 20), 2);
  memory_[40] = 3;
  weights_.Announce(Part(0, 100));
  EXPECT_EQ(First(40, 20), 3);
  EXPECT_EQ(conversions_, 3);
}

TEST_F(Bf16WeightsTest, AnnouncementReplacesThoseThatItOverlaps) {
  weights_.Announce(Part(0, 50));
  EXPECT_EQ(First(0, 50), 1);
  weights_.Announce(Part(40, 30));
  EXPECT_EQ(First(0, 50), -1);
  EXPECT_EQ(First(40, 30), 1);
}

}  // namespace
}  // namespace cadre
