#include "worker/train/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/transport/ranks.h"
#include "worker/comm/communicator.h"

namespace cadre {
namespace {

// What every rank of a group gets.
template <typename Result>
std::vector<Result> OnGroup(int ranks, const std::function<Result(Communicator&)>& body) {
  const Transports transports = MakeTransports(Wire::kThreads, ranks);
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::vector<Result> results(members.size());
  OnRanks(ranks, [&](int rank) {
    Communicator group(*transports[rank], members);
    results[rank] = body(group);
  });
  return results;
}

TEST(Agree, AllWell) {
  for (const int ranks : {1, 2, 5}) {
    for (const absl::Status& status : OnGroup<absl::Status>(
             ranks, [](Communicator& group) { return Agree(absl::OkStatus(), group); })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(Agree, TheFirstFailureIsEverybodys) {
  const auto statuses = OnGroup<absl::Status>(4, [](Communicator& group) {
    const std::string text = absl::StrCat("disk of ", group.index());
    return Agree(group.index() == 0 ? absl::OkStatus() : absl::ResourceExhaustedError(text), group);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, absl::ResourceExhaustedError("rank 1: disk of 1"));
  }
}

TEST(Agree, AloneTheStatusIsAsItIs) {
  const auto statuses = OnGroup<absl::Status>(
      1, [](Communicator& group) { return Agree(absl::NotFoundError("x"), group); });
  EXPECT_EQ(statuses[0], absl::NotFoundError("x"));
}

TEST(Agree, LongMessagesAreCut) {
  const auto statuses = OnGroup<absl::Status>(2, [](Communicator& group) {
    return Agree(absl::InternalError(std::string(100'000, 'x')), group);
  });
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_LT(statuses[0].message().size(), 5000U);
}

TEST(TextOfFirst, IsEverybodys) {
  for (const std::string& text :
       {std::string(), std::string("a/path"), std::string(100'000, 'p')}) {
    for (const auto& got : OnGroup<absl::StatusOr<std::string>>(3, [&](Communicator& group) {
           return TextOfFirst(group.index() == 0 ? text : "another", group);
         })) {
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, text);
    }
  }
}

}  // namespace
}  // namespace cadre
