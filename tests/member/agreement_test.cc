#include "member/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/transport/suspects.h"
#include "tests/member/group_ranks.h"

namespace cadre {
namespace {

using ::testing::Each;

// The results of all ranks.
template <typename Result>
std::vector<Result> ResultsOf(int ranks, const std::function<Result(Communicator&)>& body) {
  std::vector<Result> results(ranks);
  OnGroup(ranks, [&](Communicator& group) { results[group.index()] = body(group); });
  return results;
}

TEST(Agree, OkIfAllRanksAre) {
  for (const int ranks : {1, 2, 5}) {
    EXPECT_THAT(ResultsOf<absl::Status>(
                    ranks, [](Communicator& group) { return Agree(absl::OkStatus(), group); }),
                Each(absl::OkStatus()));
  }
}

TEST(Agree, ReturnsTheFirstErrorOnAllRanks) {
  const auto statuses = ResultsOf<absl::Status>(4, [](Communicator& group) {
    const std::string text = absl::StrCat("disk of ", group.index());
    return Agree(group.index() == 0 ? absl::OkStatus() : absl::ResourceExhaustedError(text), group);
  });
  EXPECT_THAT(statuses, Each(WithSuspects(absl::ResourceExhaustedError("rank 1: disk of 1"), {1})));
}

TEST(Agree, SingleRankReturnsItsStatusUnchanged) {
  const auto statuses = ResultsOf<absl::Status>(
      1, [](Communicator& group) { return Agree(absl::NotFoundError("x"), group); });
  EXPECT_EQ(statuses[0], absl::NotFoundError("x"));
}

TEST(Agree, TruncatesLongMessages) {
  const auto statuses = ResultsOf<absl::Status>(2, [](Communicator& group) {
    return Agree(absl::InternalError(std::string(100'000, 'x')), group);
  });
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_LT(statuses[0].message().size(), 5000U);
}

TEST(BroadcastText, IsReturnedOnAllRanks) {
  for (const std::string& text :
       {std::string(), std::string("a/path"), std::string(100'000, 'p')}) {
    for (const auto& got : ResultsOf<absl::StatusOr<std::string>>(3, [&](Communicator& group) {
           return BroadcastText(group.index() == 0 ? text : "another", group);
         })) {
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, text);
    }
  }
}

TEST(GatherTexts, ReturnsTextsOfAllRanks) {
  OnGroup(3, [](Communicator& group) {
    const auto texts = GatherTexts(std::string(group.index() * 2, 'a'), group);
    ASSERT_TRUE(texts.ok()) << texts.status();
    EXPECT_EQ(*texts, (std::vector<std::string>{"", "aa", "aaaa"}));
  });
}

}  // namespace
}  // namespace cadre
