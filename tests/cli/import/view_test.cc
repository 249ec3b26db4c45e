#include "cli/import/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::ElementsAre;

TEST(ViewTest, WholeIsOneFactor) {
  const View view({2, 3, 4});
  EXPECT_TRUE(view.IsWhole());
  EXPECT_THAT(view.FactorsOf(0, 3), ElementsAre(Factor{24, 1}));
  EXPECT_THAT(view.sizes(), ElementsAre(2, 3, 4));
}

TEST(ViewTest, TransposeThenReshapeNeedsNoCopy) {
  // [2, 3] transposed to [3, 2] and flattened: columns after each other.
  const auto flat = View({2, 3}).Transposed({1, 0}).Reshaped({6});
  ASSERT_TRUE(flat);
  EXPECT_THAT(flat->Positions(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_FALSE(flat->IsWhole());
  // A dimension that ends within a factor splits it.
  const auto split = View({6}).Reshaped({3, 2});
  EXPECT_EQ(split->Transposed({1, 0}), View({3, 2}).Transposed({1, 0}));
}

TEST(ViewTest, BackAndForthIsTheSame) {
  const View view({4, 6, 5});
  const auto there = view.Reshaped({4, 2, 3, 5})->Transposed({0, 2, 1, 3});
  EXPECT_EQ(*there.Transposed({0, 2, 1, 3}).Reshaped({4, 6, 5}), view);
}

TEST(ViewTest, RefusesWhatCannotBeDivided) {
  const View view = View({2, 3}).Transposed({1, 0});
  EXPECT_FALSE(view.Reshaped({2, 3}));
  EXPECT_FALSE(view.Reshaped({7}));
  EXPECT_FALSE(View({2, 3}).Expanded({4, 3}));
  EXPECT_FALSE(View({4}).Sliced(0, 1, 9));
}

TEST(ViewTest, SliceAndSelectMoveTheOffset) {
  const View view({4, 6});
  EXPECT_THAT(view.Sliced(1, 2, 4)->Selected(0, 1).Positions(), ElementsAre(8, 9));
  // Selecting from two factors decodes the number.
  const View merged = *View({2, 3}).Transposed({1, 0}).Reshaped({6});
  EXPECT_THAT(merged.Selected(0, 3).Positions(), ElementsAre(4));
}

TEST(ViewTest, ExpandRepeats) {
  EXPECT_THAT(View({1, 2}).Expanded({3, 2})->Positions(), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(View({2}).Expanded({2, 2})->Positions(), ElementsAre(0, 1, 0, 1));
}

TEST(ViewTest, LimitsAreChecked) {
  EXPECT_FALSE(View::IsPossible({int64_t{1} << 30, int64_t{1} << 30}));
  EXPECT_FALSE(View::IsPossible({-1}));
  EXPECT_FALSE(View::IsPossible(std::vector<int64_t>(20, 1)));
  EXPECT_TRUE(View::IsPossible({0, 5}));
}

}  // namespace
}  // namespace cadre
