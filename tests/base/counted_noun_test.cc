#include "base/counted_noun.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(CountedTest, SingularAndPlural) {
  EXPECT_EQ(Counted(0, "round"), "0 rounds");
  EXPECT_EQ(Counted(1, "round"), "1 round");
  EXPECT_EQ(Counted(2, "mesh", "meshes"), "2 meshes");
}

}  // namespace
}  // namespace cadre
