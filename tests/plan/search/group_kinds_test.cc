#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/search/group_choice.h"
#include "tests/plan/profile.h"

namespace cadre {
namespace {

// A cluster of these hosts (fields in text format) with the devices d and e.
v1::ClusterProfile ProfileWith(const std::vector<std::string>& hosts) {
  std::string text = R"(default_link { alpha: 1e-5 beta: 1e-9 }
      device { name: "d" flops: 1e9 } device { name: "e" flops: 2e9 })";
  for (const std::string& host : hosts) {
    absl::StrAppend(&text, "host { ", host, " inside { alpha: 1e-6 beta: 1e-10 } }");
  }
  return testing::ProfileOf(text);
}

// First worker and number of groups of each kind.
std::vector<std::pair<int, int64_t>> Kinds(const v1::ClusterProfile& profile, int64_t groups,
                                           int64_t ranks) {
  std::vector<std::pair<int, int64_t>> kinds;
  for (const GroupKind& kind : KindsOfGroups(profile, groups, ranks)) {
    kinds.emplace_back(kind.first_worker, kind.groups);
  }
  return kinds;
}

using Pairs = std::vector<std::pair<int, int64_t>>;

TEST(GroupKindsTest, EqualHostsMakeEqualGroups) {
  const v1::ClusterProfile profile =
      ProfileWith({"name: 'a' workers: 4 device: 'd'", "name: 'b' workers: 4 device: 'd'",
                   "name: 'c' workers: 4 device: 'e'"});
  EXPECT_EQ(Kinds(profile, 12, 1), (Pairs{{0, 8}, {8, 4}}));
  EXPECT_EQ(Kinds(profile, 6, 2), (Pairs{{0, 4}, {8, 2}}));
  EXPECT_EQ(Kinds(profile, 3, 4), (Pairs{{0, 2}, {8, 1}}));
  // Groups across hosts depend on links, so each is of its own kind.
  EXPECT_EQ(Kinds(profile, 2, 6), (Pairs{{0, 1}, {6, 1}}));
  EXPECT_EQ(Kinds(profile, 1, 12), (Pairs{{0, 1}}));
}

TEST(GroupKindsTest, CountedHosts) {
  const v1::ClusterProfile profile = ProfileWith({"name: 'rack' count: 6 workers: 2 device: 'd'"});
  EXPECT_EQ(Kinds(profile, 3, 4), (Pairs{{0, 3}}));
  // Groups of three ranks begin on a host's first worker or on its second.
  EXPECT_EQ(Kinds(profile, 4, 3), (Pairs{{0, 2}, {3, 2}}));
}

TEST(GroupKindsTest, ManyWorkers) {
  const v1::ClusterProfile profile =
      ProfileWith({"name: 'rack' count: 12500 workers: 8 device: 'd'"});
  EXPECT_EQ(Kinds(profile, 100'000, 1), (Pairs{{0, 100'000}}));
  EXPECT_EQ(Kinds(profile, 6'250, 16), (Pairs{{0, 6'250}}));
}

}  // namespace
}  // namespace cadre
