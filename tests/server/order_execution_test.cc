#include "server/order_execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/order_queue.h"
#include "tests/base/file_size_limit.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

// The message may contain keys, which must not reach a log.
TEST(OrderExecutionTest, BodyNameDoesNotShowValues) {
  v1::CoordinatorMessage message;
  EXPECT_EQ(BodyName(message), "nothing");
  message.mutable_assignment()->set_key("secret");
  EXPECT_EQ(BodyName(message), "assignment");
  (*message.mutable_open_run()->mutable_keys())[0] = "secret";
  EXPECT_EQ(BodyName(message), "open_run");
}

class OpenOrderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto host =
        ShardHost::Open({.data_dir = folder_.path(), .name = "agg-0", .counters = &counters_});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }

  OrderResult Open() {
    v1::CoordinatorMessage order;
    *order.mutable_open_run() = run_.Open();
    return ExecuteOrder(*host_, order);
  }

  TemporaryFolder folder_;
  Counters counters_;
  SmallRun run_;
  std::unique_ptr<ShardHost> host_;
};

TEST_F(OpenOrderTest, FullDiskIsTriedAgainUntilItsAnswerIsNeeded) {
  {
    const FileSizeLimit full(127);
    const OrderResult result = Open();
    EXPECT_TRUE(absl::IsResourceExhausted(result.repeat)) << result.repeat;
    EXPECT_FALSE(result.answer.has_value());
    ASSERT_TRUE(result.give_up.has_value());
    EXPECT_EQ(result.give_up->run_opened().run(), run_.run);
    EXPECT_EQ(result.give_up->run_opened().shards(), run_.shards);
    EXPECT_THAT(result.give_up->run_opened().error(), HasSubstr("File too large"));
  }
  const OrderResult opened = Open();
  EXPECT_TRUE(opened.repeat.ok()) << opened.repeat;
  ASSERT_TRUE(opened.answer.has_value());
  EXPECT_EQ(opened.answer->run_opened().error(), "");
}

TEST_F(OpenOrderTest, ShardWithAVersionIsNotGivenUp) {
  EXPECT_TRUE(Open().repeat.ok());
  const FileSizeLimit full(0);
  const OrderResult result = Open();
  EXPECT_TRUE(absl::IsResourceExhausted(result.repeat)) << result.repeat;
  EXPECT_FALSE(result.give_up.has_value());
}

TEST_F(OpenOrderTest, FileInPlaceOfTheFolderIsAnError) {
  WriteAll(folder_.path() + "/" + run_.run, "a file");
  const OrderResult result = Open();
  EXPECT_TRUE(result.repeat.ok()) << result.repeat;
  ASSERT_TRUE(result.answer.has_value());
  EXPECT_THAT(result.answer->run_opened().error(), HasSubstr(run_.run));
}

TEST_F(OpenOrderTest, InvalidOrderIsAnswered) {
  v1::CoordinatorMessage order;
  *order.mutable_open_run() = run_.Open();
  order.mutable_open_run()->set_shard(7);
  const OrderResult result = ExecuteOrder(*host_, order);
  EXPECT_TRUE(result.repeat.ok()) << result.repeat;
  ASSERT_TRUE(result.answer.has_value());
  EXPECT_NE(result.answer->run_opened().error(), "");
}

}  // namespace
}  // namespace cadre::testing
