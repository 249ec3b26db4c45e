#include "tensor/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PartBeginTest, PartsAreNearEqual) {
  for (int64_t n : {0, 1, 2, 3, 5, 7, 10, 64, 1000, 60000}) {
    for (int64_t parts : {1, 2, 3, 4, 7, 16, 100}) {
      EXPECT_EQ(PartBegin(n, 0, parts), 0);
      EXPECT_EQ(PartBegin(n, parts, parts), n);
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t size = PartBegin(n, i + 1, parts) - PartBegin(n, i, parts);
        EXPECT_GE(size, n / parts);
        EXPECT_LE(size, (n + parts - 1) / parts);
      }
    }
  }
}

TEST(PartBeginTest, UnevenSplit) {
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= 4; ++i) begins.push_back(PartBegin(10, i, 4));
  EXPECT_THAT(begins, ElementsAre(0, 2, 5, 7, 10));
}

TEST(LayoutTest, ToString) {
  EXPECT_EQ(Layout::Replicated().ToString(), "replicated");
  EXPECT_EQ(Layout::Split(1, {"data", "model"}).ToString(), "{1: data*model}");
  Layout layout = Layout::Split(0, {"data"});
  layout.partial_sum = {"model"};
  EXPECT_EQ(layout.ToString(), "{0: data} + partial(model)");
  EXPECT_EQ((Layout{.partial_sum = {"data", "model"}}).ToString(), "partial(data*model)");
}

TEST(LayoutTest, UnnamedDimensionsAreReplicated) {
  const Layout layout = Layout::Split(1, {"model"});
  EXPECT_THAT(layout.axes(0), IsEmpty());
  EXPECT_THAT(layout.axes(1), ElementsAre("model"));
  EXPECT_THAT(layout.axes(5), IsEmpty());
}

TEST(LayoutTest, EqualUpToTrailingDimensions) {
  Layout longer = Layout::Split(0, {"data"});
  longer.split.resize(4);
  EXPECT_EQ(longer, Layout::Split(0, {"data"}));
  EXPECT_EQ(Layout::Split(2, {}), Layout::Replicated());
  EXPECT_NE(longer, Layout::Replicated());
  EXPECT_NE(longer, Layout::Split(1, {"data"}));
  EXPECT_NE(Layout::Split(0, {"data", "model"}), Layout::Split(0, {"model", "data"}));
  longer.partial_sum = {"model"};
  EXPECT_NE(longer, Layout::Split(0, {"data"}));
}

TEST(LocalBoxTest, DataAndModelParallel) {
  const Mesh mesh({{"data", 2}, {"model", 3}});
  const Shape shape{10, 7};
  Layout layout = Layout::Split(0, {"data"});
  layout.split.push_back({"model"});
  // Rank 4 is data 1, model 1.
  EXPECT_EQ(LocalBox(shape, layout, mesh, 4), (Box{{5, 2}, {10, 4}}));
  EXPECT_EQ(LocalBox(shape, Layout::Replicated(), mesh, 4), Box::Whole(shape));
  // Both axes together split one dimension into six parts.
  EXPECT_EQ(LocalBox(shape, Layout::Split(0, {"data", "model"}), mesh, 4), (Box{{6, 0}, {8, 7}}));
  // A partial sum is a whole tensor on every rank.
  EXPECT_EQ(LocalBox(shape, Layout{.partial_sum = {"model"}}, mesh, 4), Box::Whole(shape));
  // An axis that the mesh lacks has one rank.
  EXPECT_EQ(LocalBox(shape, Layout::Split(0, {"domain"}), mesh, 4), Box::Whole(shape));
}

TEST(LocalBoxTest, EmptyAtOtherCoordinates) {
  const Mesh mesh({{"data", 2}, {"stage", 2}});
  Layout layout = Layout::Split(0, {"data"});
  layout.at = {{.axis = "stage", .coordinate = 1}};
  EXPECT_EQ(LocalBox({10, 7}, layout, mesh, 3), (Box{{5, 0}, {10, 7}}));
  EXPECT_EQ(LocalBox({10, 7}, layout, mesh, 2), (Box{{0, 0}, {0, 7}}));
  EXPECT_EQ(layout.ToString(), "{0: data} on stage@1");
  EXPECT_NE(layout, Layout::Split(0, {"data"}));
}

TEST(LocalBoxTest, MorePartsThanElements) {
  const Mesh mesh({{"model", 4}});
  int64_t elements = 0;
  int empty = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const Box box = LocalBox(Shape{2, 3}, Layout::Split(0, {"model"}), mesh, rank);
    elements += box.shape().elements();
    empty += box.empty() ? 1 : 0;
  }
  EXPECT_EQ(elements, 6);
  EXPECT_EQ(empty, 2);
}

// The number of ranks that hold an element is the product of the sizes of the axes that do not
// split the tensor: one if the layout uses the whole mesh.
void ExpectEvenCover(const Shape& shape, const Layout& layout, const Mesh& mesh) {
  SCOPED_TRACE(shape.ToString() + " " + layout.ToString() + " on " + mesh.ToString());
  std::vector<int> holders(shape.elements(), 0);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Box box = LocalBox(shape, layout, mesh, rank);
    const Shape local = box.shape();
    for (int64_t i = 0; i < local.elements(); ++i) {
      int64_t rest = i;
      int64_t index = 0;
      int64_t stride = 1;
      for (int d = shape.rank() - 1; d >= 0; --d) {
        index += (box.begin[d] + rest % local[d]) * stride;
        rest /= local[d];
        stride *= shape[d];
      }
      ++holders[index];
    }
  }
  int copies = mesh.ranks();
  for (const auto& axes : layout.split) copies /= mesh.Size(axes);
  EXPECT_THAT(holders, ::testing::Each(copies));
}

TEST(LocalBoxTest, BoxesCoverTheTensorEvenly) {
  const std::vector<Mesh> meshes = {Mesh(),
                                    Mesh({{"a", 1}}),
                                    Mesh({{"a", 3}}),
                                    Mesh({{"a", 2}, {"b", 2}}),
                                    Mesh({{"b", 3}, {"a", 2}}),
                                    Mesh({{"a", 2}, {"b", 3}, {"c", 2}})};
  const std::vector<Shape> shapes = {{1, 1, 1}, {2, 3, 4}, {7, 5, 3}, {1, 11, 2}, {0, 3, 2}};
  std::vector<Layout> layouts = {Layout::Replicated(), Layout::Split(0, {"a"}),
                                 Layout::Split(1, {"b", "a"}), Layout::Split(2, {"c"})};
  layouts.push_back({.split = {{"a"}, {"b"}, {"c"}}});
  layouts.push_back({.split = {{"c", "a"}, {}, {"b"}}});
  for (const Mesh& mesh : meshes) {
    for (const Shape& shape : shapes) {
      for (const Layout& layout : layouts) ExpectEvenCover(shape, layout, mesh);
    }
  }
}

}  // namespace
}  // namespace cadre
