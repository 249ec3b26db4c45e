#include "member/regroup.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/train/checkpoint_testing.h"

namespace cadre {
namespace {

// The slices lie all over the parameter order; position p has value p.
TEST(Regroup, PartsHaveTheValuesOfAllSlices) {
  constexpr int64_t kSize = 97;
  for (const Partition partition :
       {Partition{1, 0}, {1, 4}, {2, 0}, {3, 0}, {3, 1}, {4, 10}, {5, 40}}) {
    OnGroup(partition.ranks, [&](Communicator& group) {
      const std::vector<Interval> slices = IntervalsOf(partition, kSize, group.index());
      std::vector<float> memory(kSize, -1);
      std::vector<Owned> owned;
      for (const Interval& slice : slices) {
        owned.push_back({slice, std::span(memory).subspan(slice.begin, slice.size())});
        for (int64_t p = slice.begin; p < slice.end; ++p) memory[p] = static_cast<float>(p);
      }
      // The parts have different sizes, and the first is empty.
      const auto cut = [&](int i) { return kSize * i * i / (group.size() * group.size()); };
      const Interval part =
          group.size() == 1
              ? Interval{0, kSize}
              : Interval{group.index() == 0 ? 0 : cut(group.index()), cut(group.index() + 1)};
      auto regroup = Regroup::Make(owned, part, group);
      ASSERT_TRUE(regroup.ok()) << regroup.status();
      std::vector<float> values(part.size());
      ASSERT_TRUE(regroup->ToPart(owned, values).ok());
      for (int64_t i = 0; i < part.size(); ++i) ASSERT_EQ(values[i], part.begin + i);

      for (float& value : values) value += 1000;
      ASSERT_TRUE(regroup->FromPart(values, owned).ok());
      for (const Interval& slice : slices) {
        for (int64_t p = slice.begin; p < slice.end; ++p) ASSERT_EQ(memory[p], p + 1000);
      }
    });
  }
}

}  // namespace
}  // namespace cadre
