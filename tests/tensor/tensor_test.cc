#include "tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(ShapeTest, Elements) {
  EXPECT_EQ(Shape({}).elements(), 1);
  EXPECT_EQ(Shape({5}).elements(), 5);
  EXPECT_EQ(Shape({64, 1, 28, 28}).elements(), 64 * 28 * 28);
  EXPECT_EQ(Shape({64, 0, 28}).elements(), 0);
  // Beyond 32 bits.
  EXPECT_EQ(Shape({1 << 20, 1 << 20}).elements(), int64_t{1} << 40);
}

TEST(ShapeTest, ToStringAndEquality) {
  EXPECT_EQ(Shape({64, 1, 28, 28}).ToString(), "[64, 1, 28, 28]");
  EXPECT_EQ(Shape({}).ToString(), "[]");
  EXPECT_EQ(Shape({2, 3}), Shape(std::vector<int64_t>{2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
}

TEST(TensorTest, StartsWithZeros) {
  const Tensor tensor(Shape{3, 5});
  EXPECT_EQ(tensor.elements(), 15);
  EXPECT_EQ(tensor.span().size(), 15U);
  EXPECT_THAT(tensor.span(), Each(0.0F));
}

TEST(TensorTest, IsAligned) {
  for (int64_t n : {1, 3, 16, 17, 1000}) {
    const Tensor tensor(Shape{n});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0U) << n;
  }
}

TEST(TensorTest, EmptyTensorsAreLegal) {
  const Tensor none;
  EXPECT_EQ(none.elements(), 0);
  EXPECT_TRUE(none.span().empty());
  Tensor empty(Shape{0, 7});
  EXPECT_EQ(empty.shape(), Shape({0, 7}));
  EXPECT_TRUE(empty.span().empty());
  empty.Fill(3);
}

TEST(TensorTest, MovesWithoutCopying) {
  static_assert(!std::is_copy_constructible_v<Tensor> && !std::is_copy_assignable_v<Tensor>);
  Tensor a(Shape{4});
  a.Fill(1);
  const float* data = a.data();
  Tensor b = std::move(a);
  EXPECT_EQ(b.data(), data);
  Tensor c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_THAT(c.span(), ElementsAre(1, 1, 1, 1));
}

TEST(TensorDeathTest, NegativeExtent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Tensor(Shape{2, -1}), "\\[2, -1\\]");
}

}  // namespace
}  // namespace cadre
