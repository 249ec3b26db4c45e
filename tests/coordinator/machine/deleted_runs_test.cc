// Which orders to delete are sent, and which deletions are remembered.
#include "coordinator/machine/deleted_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DeletedRunsTest : public ::testing::Test {
 protected:
  DeletedRunsTest() {
    cluster_.Begin(absl::UnixEpoch());
    cluster_.Restore({}, 1);
  }
  // An aggregator with a stream.
  Member& AddAggregator(const std::string& name) {
    v1::MemberRecord record;
    record.set_member_id(absl::StrCat("a", ++members_));
    record.set_role(v1::ROLE_AGGREGATOR);
    record.set_name(name);
    Member& member = cluster_.members().Add(record, absl::UnixEpoch());
    cluster_.members().Attach(member, members_, absl::UnixEpoch());
    return member;
  }
  // Ids whose order is that of their numbers.
  static std::string Run(uint32_t number) { return absl::StrFormat("run-%06d-test", number); }
  void Add(uint32_t number, const std::vector<std::string>& aggregators) {
    v1::DeletedRunRecord record;
    record.set_run(Run(number));
    record.set_lineage(absl::StrCat("lineage of ", number));
    for (const std::string& name : aggregators) record.add_aggregators(name);
    deleted_.Add(record);
  }
  // Carries out the actions since the last call. Returns the runs of the orders that were sent.
  std::vector<std::string> Commit() {
    std::vector<std::string> ordered;
    for (const Action& action : cluster_.Take()) {
      if (const auto* op = std::get_if<Store::Op>(&action)) testing::ApplyTo(store_, *op);
      if (const auto* send = std::get_if<Send>(&action)) {
        ordered.push_back(send->message.delete_run().run());
      }
    }
    return ordered;
  }
  // Number of deletions in the store.
  int64_t Remembered() const {
    return absl::c_count_if(
        store_, [](const auto& record) { return absl::StartsWith(record.first, kDeletedPrefix); });
  }
  // The aggregators that have not confirmed, by the store.
  std::vector<std::string> Awaited(uint32_t number) {
    v1::DeletedRunRecord record;
    EXPECT_TRUE(record.ParseFromString(store_.at(DeletedKey(Run(number)))));
    return {record.aggregators().begin(), record.aggregators().end()};
  }

  CoordinatorOptions options_;
  Cluster cluster_{options_};
  DeletedRuns deleted_{cluster_};
  std::map<std::string, std::string> store_;
  uint64_t members_ = 0;
};

TEST_F(DeletedRunsTest, FilesBelongToOneLineage) {
  Add(1, {});
  EXPECT_TRUE(deleted_.Contains(Run(1)));
  EXPECT_FALSE(deleted_.Contains(Run(2)));
  EXPECT_TRUE(deleted_.Contains(Run(1), "lineage of 1"));
  EXPECT_FALSE(deleted_.Contains(Run(1), "lineage of 2"));
  EXPECT_FALSE(deleted_.Contains(Run(2), "lineage of 2"));
}

TEST_F(DeletedRunsTest, OrdersAreRepeatedUntilTheyAreConfirmed) {
  Member& first = AddAggregator("agg-0");
  AddAggregator("agg-1");
  Add(1, {"agg-0", "agg-9"});
  EXPECT_THAT(Commit(), ElementsAre(Run(1)));
  EXPECT_THAT(Awaited(1), ElementsAre("agg-0", "agg-9"));
  deleted_.SendOrders(first);
  EXPECT_THAT(Commit(), IsEmpty()) << "the order is on its way";
  deleted_.OnAggregatorLost("agg-0");
  deleted_.SendOrders(first);
  EXPECT_THAT(Commit(), ElementsAre(Run(1)));
  deleted_.Confirm(first, Run(1));
  EXPECT_THAT(Commit(), IsEmpty());
  EXPECT_THAT(Awaited(1), ElementsAre("agg-9"));
  deleted_.OnAggregatorLost("agg-0");
  deleted_.SendOrders(first);
  EXPECT_THAT(Commit(), IsEmpty());
  deleted_.Confirm(first, Run(1));
  EXPECT_THAT(Commit(), IsEmpty()) << "a repetition changes nothing";
}

TEST_F(DeletedRunsTest, AggregatorThatStillHasFilesIsRecorded) {
  Member& member = AddAggregator("agg-0");
  Add(1, {});
  EXPECT_THAT(Commit(), IsEmpty());
  deleted_.Require("agg-0", Run(1));
  deleted_.Require("agg-0", Run(1));
  Commit();
  EXPECT_THAT(Awaited(1), ElementsAre("agg-0"));
  deleted_.SendOrders(member);
  EXPECT_THAT(Commit(), ElementsAre(Run(1)));
}

TEST_F(DeletedRunsTest, FewOrdersAreOnTheirWay) {
  Member& member = AddAggregator("agg-0");
  for (uint32_t run = 1; run <= 70; ++run) Add(run, {"agg-0"});
  EXPECT_EQ(Commit().size(), 64U);
  deleted_.Confirm(member, Run(3));
  EXPECT_THAT(Commit(), ElementsAre(Run(65)));
}

// 1024 are remembered. Those that all aggregators have confirmed matter least.
TEST_F(DeletedRunsTest, OldestConfirmedDeletionIsForgotten) {
  for (uint32_t run = 1; run <= 1024; ++run) {
    Add(run, run == 3 || run == 5 ? std::vector<std::string>() : std::vector<std::string>{"away"});
  }
  Commit();
  EXPECT_EQ(Remembered(), 1024);
  const struct {
    uint32_t added, forgotten, highest_forgotten;
  } cases[] = {{1025, 3, 3}, {1026, 5, 5}, {1027, 1, 5}};
  for (const auto& [added, forgotten, highest_forgotten] : cases) {
    Add(added, {"away"});
    Commit();
    EXPECT_FALSE(deleted_.Contains(Run(forgotten)));
    EXPECT_FALSE(store_.contains(DeletedKey(Run(forgotten))));
    EXPECT_TRUE(deleted_.Contains(Run(added)));
    EXPECT_EQ(Remembered(), 1024);
    EXPECT_EQ(cluster_.meta().removed_run(), highest_forgotten);
  }
}

TEST_F(DeletedRunsTest, ForgottenOrderMakesRoomForAnother) {
  AddAggregator("agg-0");
  for (uint32_t run = 1; run <= 1024; ++run) Add(run, {"agg-0"});
  EXPECT_EQ(Commit().size(), 64U);
  Add(1025, {"agg-0"});
  EXPECT_FALSE(deleted_.Contains(Run(1)));
  EXPECT_THAT(Commit(), ElementsAre(Run(65)));
}

}  // namespace
}  // namespace cadre
