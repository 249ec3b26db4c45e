#include "tensor/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tensor/layout.h"
#include "tensor/tensor.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

Tensor Counting(const Shape& shape) {
  Tensor tensor(shape);
  std::iota(tensor.span().begin(), tensor.span().end(), 0.0F);
  return tensor;
}

// The element at `index` of a row-major tensor that holds `box`.
float At(const Tensor& tensor, const Box& box, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    offset = offset * (box.end[d] - box.begin[d]) + index[d] - box.begin[d];
  }
  return tensor.data()[offset];
}

TEST(BoxTest, Whole) {
  const Box box = Box::Whole({2, 3});
  EXPECT_EQ(box, (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(box.shape(), (Shape{2, 3}));
  EXPECT_FALSE(box.empty());
  EXPECT_EQ(box.ToString(), "[0:2, 0:3]");
}

TEST(BoxTest, ScalarHasOneElement) {
  const Box box = Box::Whole(Shape{});
  EXPECT_FALSE(box.empty());
  EXPECT_EQ(box.shape().elements(), 1);
  const std::vector<float> from = {7};
  std::vector<float> to = {0};
  CopyBox(from, box, to, box, box);
  EXPECT_THAT(to, ElementsAre(7));
}

TEST(BoxTest, Intersect) {
  const Box a{{0, 2}, {4, 8}};
  const Box b{{2, 0}, {6, 5}};
  EXPECT_EQ(Intersect(a, b), (Box{{2, 2}, {4, 5}}));
  EXPECT_EQ(Intersect(b, a), (Box{{2, 2}, {4, 5}}));
  EXPECT_EQ(Intersect(a, a), a);
}

TEST(BoxTest, DisjointBoxesHaveEmptyIntersection) {
  const Box a{{0, 0}, {2, 2}};
  for (const Box& b : {Box{{2, 0}, {4, 2}}, Box{{5, 5}, {6, 6}}, Box{{0, 0}, {0, 2}}}) {
    const Box both = Intersect(a, b);
    EXPECT_TRUE(both.empty()) << both.ToString();
    EXPECT_EQ(both.shape().elements(), 0) << both.ToString();
  }
}

TEST(CopyBoxTest, EmptyRegionCopiesNothing) {
  const Box whole = Box::Whole({2, 2});
  const std::vector<float> from = {1, 2, 3, 4};
  std::vector<float> to(4, -1);
  CopyBox(from, whole, to, whole, Box{{1, 1}, {1, 2}});
  EXPECT_THAT(to, Each(-1.0F));
  CopyBox({}, Box{{0, 0}, {0, 2}}, to, whole, Box{{0, 0}, {0, 2}});
  EXPECT_THAT(to, Each(-1.0F));
}

TEST(CopyBoxTest, ChangesOnlyRegion) {
  const Tensor from = Counting({3, 4});
  std::vector<float> to(12, -1);
  const Box whole = Box::Whole({3, 4});
  CopyBox(from.span(), whole, to, whole, Box{{1, 1}, {3, 3}});
  EXPECT_THAT(to, ElementsAre(-1, -1, -1, -1, -1, 5, 6, -1, -1, 9, 10, -1));
}

TEST(CopyBoxTest, StridedInFourDimensions) {
  const Shape shape{3, 4, 5, 6};
  const Box whole = Box::Whole(shape);
  const Tensor tensor = Counting(shape);
  // Each region spans a different set of dimensions, so that runs of every length occur.
  const std::vector<Box> regions = {
      whole,
      {{1, 0, 0, 0}, {2, 4, 5, 6}},
      {{0, 1, 0, 0}, {3, 3, 5, 6}},
      {{0, 0, 2, 0}, {3, 4, 3, 6}},
      {{0, 0, 0, 1}, {3, 4, 5, 5}},
      {{1, 1, 1, 1}, {3, 4, 4, 2}},
      {{2, 3, 4, 5}, {3, 4, 5, 6}},
  };
  for (const Box& region : regions) {
    SCOPED_TRACE(region.ToString());
    Tensor piece(region.shape());
    CopyBox(tensor.span(), whole, piece.span(), region, region);
    for (int64_t a = region.begin[0]; a < region.end[0]; ++a) {
      for (int64_t b = region.begin[1]; b < region.end[1]; ++b) {
        for (int64_t c = region.begin[2]; c < region.end[2]; ++c) {
          for (int64_t d = region.begin[3]; d < region.end[3]; ++d) {
            ASSERT_EQ(At(piece, region, {a, b, c, d}), At(tensor, whole, {a, b, c, d}));
          }
        }
      }
    }
  }
}

TEST(CopyBoxTest, BetweenOverlappingBoxes) {
  const Shape shape{6, 5, 4};
  const Tensor tensor = Counting(shape);
  const Box a{{0, 1, 0}, {4, 5, 3}};
  const Box b{{2, 0, 1}, {6, 4, 4}};
  Tensor from(a.shape());
  CopyBox(tensor.span(), Box::Whole(shape), from.span(), a, a);
  Tensor to(b.shape());
  to.Fill(-1);
  const Box both = Intersect(a, b);
  CopyBox(from.span(), a, to.span(), b, both);
  for (int64_t i = b.begin[0]; i < b.end[0]; ++i) {
    for (int64_t j = b.begin[1]; j < b.end[1]; ++j) {
      for (int64_t k = b.begin[2]; k < b.end[2]; ++k) {
        const bool copied = !Intersect(both, Box{{i, j, k}, {i + 1, j + 1, k + 1}}).empty();
        const float want = copied ? At(tensor, Box::Whole(shape), {i, j, k}) : -1;
        ASSERT_EQ(At(to, b, {i, j, k}), want);
      }
    }
  }
}

// Splits a tensor by one layout and assembles it by another, as a reshard does.
TEST(CopyBoxTest, BetweenTwoLayouts) {
  const Mesh mesh({{"a", 2}, {"b", 3}});
  const Shape shape{5, 4, 3, 7};
  const Tensor tensor = Counting(shape);
  const std::vector<Layout> layouts = {Layout::Split(0, {"a", "b"}), Layout::Split(3, {"b", "a"}),
                                       Layout{.split = {{"b"}, {}, {"a"}}},
                                       Layout{.split = {{}, {"a"}, {}, {"b"}}}};
  for (const Layout& source : layouts) {
    for (const Layout& target : layouts) {
      SCOPED_TRACE(source.ToString() + " to " + target.ToString());
      for (int to_rank = 0; to_rank < mesh.ranks(); ++to_rank) {
        const Box to_box = LocalBox(shape, target, mesh, to_rank);
        Tensor got(to_box.shape());
        got.Fill(-1);
        for (int from_rank = 0; from_rank < mesh.ranks(); ++from_rank) {
          const Box from_box = LocalBox(shape, source, mesh, from_rank);
          Tensor part(from_box.shape());
          CopyBox(tensor.span(), Box::Whole(shape), part.span(), from_box, from_box);
          CopyBox(part.span(), from_box, got.span(), to_box, Intersect(from_box, to_box));
        }
        Tensor want(to_box.shape());
        CopyBox(tensor.span(), Box::Whole(shape), want.span(), to_box, to_box);
        ASSERT_EQ(std::vector<float>(got.span().begin(), got.span().end()),
                  std::vector<float>(want.span().begin(), want.span().end()));
      }
    }
  }
}

TEST(CopyBoxDeathTest, ChecksBoxesAndSizes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<float> from(4);
  std::vector<float> to(4);
  const Box whole = Box::Whole({2, 2});
  EXPECT_DEATH(CopyBox(from, Box::Whole({2, 3}), to, whole, whole), "0:3");
  EXPECT_DEATH(CopyBox(from, whole, to, whole, Box{{0, 0}, {2, 3}}), "0:3");
  EXPECT_DEATH(Intersect(whole, Box::Whole({2})), "0:2");
}

TEST(AddBoxTest, ChangesOnlyRegion) {
  const std::vector<float> from = {1, 2, 3, 4, 5, 6};  // rows 0-1, columns 1-3
  std::vector<float> to(8, 10.0F);                     // rows 0-1, columns 0-3
  AddBox(from, {{0, 1}, {2, 4}}, to, {{0, 0}, {2, 4}}, {{1, 1}, {2, 3}});
  EXPECT_EQ(to, (std::vector<float>{10, 10, 10, 10, 10, 14, 15, 10}));
  AddBox(from, {{0, 1}, {2, 4}}, to, {{0, 0}, {2, 4}}, {{1, 1}, {1, 4}});
  EXPECT_EQ(to[5], 14) << "an empty region adds nothing";
}

TEST(RunInTest, FindsContiguousRegions) {
  const Box box{{2, 0, 0}, {6, 4, 5}};
  EXPECT_EQ(RunIn(box, box), 0);
  EXPECT_EQ(RunIn({{3, 0, 0}, {5, 4, 5}}, box), 20) << "some rows";
  EXPECT_EQ(RunIn({{3, 1, 0}, {4, 3, 5}}, box), 25) << "part of one row";
  EXPECT_EQ(RunIn({{5, 3, 1}, {6, 4, 4}}, box), 76) << "part of a line";
  EXPECT_EQ(RunIn({{5, 3, 4}, {6, 4, 5}}, box), 79) << "one element";
  EXPECT_EQ(RunIn({{3, 1, 0}, {5, 3, 5}}, box), std::nullopt);
  EXPECT_EQ(RunIn({{3, 0, 0}, {4, 4, 4}}, box), std::nullopt);
  EXPECT_EQ(RunIn({{2, 1, 0}, {6, 2, 5}}, box), std::nullopt);
}

}  // namespace
}  // namespace cadre
