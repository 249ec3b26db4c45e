#include "model/shard_copies.h"

#include <google/protobuf/text_format.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/validate.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ProblemsOfCopies(const std::string& text) {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  std::string problems;
  for (const Problem& problem : FindProblems(spec)) {
    problems += problem.field + " " + problem.message + "\n";
  }
  return problems;
}

TEST(ShardCopiesTest, EveryShardHasACopyOnAnotherAggregator) {
  v1::Averaging averaging;
  EXPECT_FALSE(HasCopies(averaging, 2));
  averaging.set_copies(2);
  EXPECT_FALSE(HasCopies(averaging, 1));
  EXPECT_TRUE(HasCopies(averaging, 2));
  for (uint32_t shard = 0; shard < 3; ++shard) {
    EXPECT_NE(CopyHolder(shard, 3), shard);
    EXPECT_EQ(CopiedShard(CopyHolder(shard, 3), 3), shard);
  }
}

TEST(ShardCopiesTest, ImpossibleSettingsAreReported) {
  const std::string rounds = "averaging { every_steps: 8 ";
  EXPECT_THAT(ProblemsOfCopies(rounds + "copies: 0 }"),
              HasSubstr("averaging.copies is 0; it must be 1 or 2"));
  EXPECT_THAT(ProblemsOfCopies(rounds + "copies: 3 }"),
              HasSubstr("averaging.copies is 3; it must be 1 or 2"));
  EXPECT_THAT(ProblemsOfCopies(rounds + "copies: 2 } cluster { aggregators: 1 }"),
              HasSubstr("averaging.copies is 2, but cluster.aggregators is 1"));
  EXPECT_THAT(ProblemsOfCopies("averaging { copies: 2 }"),
              HasSubstr("averaging.copies is 2, but averaging.every_steps is 0"));
  for (const std::string& valid :
       {rounds + "copies: 1 } cluster { aggregators: 1 }",
        rounds + "copies: 2 } cluster { aggregators: 2 }", rounds + "copies: 2 }"}) {
    EXPECT_THAT(ProblemsOfCopies(valid), Not(HasSubstr("averaging.copies")));
  }
}

}  // namespace
}  // namespace cadre
