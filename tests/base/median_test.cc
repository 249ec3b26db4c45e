#include "base/median.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(MedianTest, IsTheMiddle) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 2}), 2);
  EXPECT_EQ(Median({9, 1, 2, 4}), 3);
  EXPECT_EQ(Median({1e9, 5, 5, 5, 0}), 5);
}

}  // namespace
}  // namespace cadre
