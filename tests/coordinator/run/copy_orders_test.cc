// When copies of shards are ordered, awaited and reported.
#include "coordinator/run/copy_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kCopiedRun[] = R"(
    run: "run-1" lineage: "run-1.0" state: RUN_STATE_RUNNING version: 3
    spec { averaging { every_steps: 5 copies: 2 } } shards: "agg-0" shards: "agg-1")";

// Shard 0 is on agg-0 and its copy on agg-1, shard 1 the other way round. The newest version is 3.
class CopyOrdersTest : public testing::RunPartTest {
 protected:
  CopyOrdersTest() : RunPartTest(kCopiedRun) {
    for (const char* name : {"agg-0", "agg-1"}) AddMember(v1::ROLE_AGGREGATOR, name);
    run_.made.Load(CommitOf(3), 3);
  }
  static v1::CommitRecord CommitOf(uint32_t round) {
    v1::CommitRecord commit;
    commit.set_run("run-1");
    commit.set_round(round);
    for (uint32_t shard = 0; shard < 2; ++shard) {
      v1::ShardDigest& digest = *commit.add_digests();
      digest.set_shard(shard);
      digest.set_digest(10 * round + shard);
    }
    return commit;
  }
  // The aggregator has opened its shard, and holds the copy of the other one in this version.
  void Open(uint32_t shard, uint32_t copied) {
    v1::RunOpened opened;
    opened.set_shard(shard);
    if (copied > 0) *opened.add_copies() = CopyOf(1 - shard, copied);
    run_.opened.Open(opened);
    orders_.OnOpened(opened);
    orders_.OnShardOpen(shard);
  }
  static v1::ShardCopy CopyOf(uint32_t shard, uint32_t version) {
    v1::ShardCopy copy;
    copy.set_shard(shard);
    copy.set_version(version);
    copy.set_digest(10 * version + shard);
    return copy;
  }
  void Copied(uint32_t shard, uint32_t version) {
    orders_.OnCopied(*cluster_.members().Aggregator(shard == 0 ? "agg-1" : "agg-0"),
                     CopyOf(shard, version));
  }
  // Round 4 closes; some shards have applied it.
  void Close(const std::vector<uint32_t>& applied_by) {
    v1::CommitRecord commit;
    commit.set_round(4);
    run_.made.Begin(commit, 2);
    for (const uint32_t shard : applied_by) {
      v1::Applied applied;
      applied.set_shard(shard);
      applied.set_digest(40 + shard);
      run_.made.Apply(applied);
    }
  }
  std::vector<v1::CopyShard> Orders() {
    std::vector<v1::CopyShard> orders;
    for (const auto& message : TakeSent()) orders.push_back(message.copy_shard());
    return orders;
  }
  std::vector<v1::CopyShard> NewOrders() {
    orders_.Send();
    return Orders();
  }
  void Wait(absl::Duration time) { cluster_.Begin(cluster_.now() + time); }

  CopyOrders orders_{run_, record(), cluster_};
};

TEST_F(CopyOrdersTest, OrderNamesTheVersionAndItsSource) {
  Open(0, 3);
  Open(1, 2);
  const std::vector<v1::CopyShard> orders = NewOrders();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].DebugString(), Parse<v1::CopyShard>(R"(
      run: "run-1" lineage: "run-1.0" shard: 0 version: 3 digest: 30
      aggregator: "agg-0" address: "agg-0:1")")
                                         .DebugString());
  EXPECT_THAT(NewOrders(), IsEmpty()) << "it is on its way";
  orders_.OnShardOpen(0);
  EXPECT_EQ(NewOrders().size(), 1U);
}

TEST_F(CopyOrdersTest, CopiesAreMadeOfCompleteVersions) {
  Open(0, 3);
  Open(1, 3);
  EXPECT_THAT(NewOrders(), IsEmpty());
  Close({0});
  EXPECT_THAT(NewOrders(), IsEmpty());
  EXPECT_FALSE(store_.contains(CommitKey("run-1", 4)));
  Close({0, 1});
  const std::vector<v1::CopyShard> orders = NewOrders();
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders[0].version(), 4U);
  EXPECT_EQ(orders[0].digest(), 40U);
  EXPECT_EQ(orders[1].digest(), 41U);
  EXPECT_TRUE(store_.contains(CommitKey("run-1", 4))) << "with the digests of the shards";
}

TEST_F(CopyOrdersTest, ShardThatIsNotOpenIsNotCopied) {
  Open(1, 2);
  EXPECT_THAT(NewOrders(), IsEmpty());
  EXPECT_FALSE(store_.contains(CommitKey("run-1", 3))) << "that of the newest version is stored";
  Open(0, 2);
  EXPECT_EQ(NewOrders().size(), 2U);
}

TEST_F(CopyOrdersTest, OrderNeedsBothAggregators) {
  Open(0, 3);
  Open(1, 2);
  cluster_.members().Remove("agg-0");
  EXPECT_THAT(NewOrders(), IsEmpty());
}

TEST_F(CopyOrdersTest, InitialModelIsNotCopied) {
  record().set_version(0);
  run_.made.Load(CommitOf(0), 0);
  Open(0, 0);
  Open(1, 0);
  EXPECT_THAT(NewOrders(), IsEmpty()) << "it can be made again";
  EXPECT_FALSE(orders_.VersionFor(0).has_value());
}

TEST_F(CopyOrdersTest, RunWithoutCopies) {
  spec().mutable_averaging()->clear_copies();
  Open(0, 0);
  Open(1, 0);
  Close({0, 1});
  EXPECT_THAT(NewOrders(), IsEmpty());
  EXPECT_EQ(orders_.AwaitedUntil(), absl::InfinitePast());
  orders_.Report();
  EXPECT_THAT(NewEvents(), IsEmpty());
  v1::RunStatus status;
  orders_.FillStatus(status);
  EXPECT_EQ(status.copies_size(), 0);
}

TEST_F(CopyOrdersTest, CommitWaitsForItsCopies) {
  Open(0, 3);
  Open(1, 3);
  EXPECT_EQ(orders_.AwaitedUntil(), absl::InfinitePast());
  EXPECT_EQ(orders_.WaitReason(), "");
  Close({0, 1});
  EXPECT_EQ(orders_.AwaitedUntil(), kStart + absl::Minutes(2)) << "no order is sent yet";
  NewOrders();
  Wait(absl::Seconds(10));
  EXPECT_EQ(orders_.AwaitedUntil(), kStart + absl::Minutes(2)) << "since the order";
  EXPECT_EQ(orders_.WaitReason(), "version 4 waits for the copy of shard 0 on aggregator agg-1");
  Copied(0, 4);
  EXPECT_EQ(orders_.WaitReason(), "version 4 waits for the copy of shard 1 on aggregator agg-0");
  Wait(absl::Seconds(109));
  EXPECT_NE(orders_.WaitReason(), "");
  Wait(absl::Seconds(1));
  EXPECT_EQ(orders_.WaitReason(), "") << "two minutes are over";
  Copied(1, 4);
  EXPECT_EQ(orders_.AwaitedUntil(), absl::InfinitePast());
  EXPECT_EQ(Counter("shards_copied"), 2U);
}

TEST_F(CopyOrdersTest, WaitBeginsAgainWhenTheShardOpens) {
  Open(0, 3);
  Open(1, 3);
  Close({0, 1});
  NewOrders();
  Copied(1, 4);
  Wait(absl::Seconds(30));
  run_.opened.Close("agg-0");
  EXPECT_EQ(orders_.AwaitedUntil(), absl::InfiniteFuture()) << "the only copy may be away";
  Open(0, 4);
  EXPECT_EQ(orders_.AwaitedUntil(), cluster_.now() + absl::Minutes(2));
}

TEST_F(CopyOrdersTest, EachVersionHasItsOwnWait) {
  Open(0, 3);
  Open(1, 2);
  NewOrders();
  Wait(absl::Minutes(1));
  Close({0, 1});
  NewOrders();
  EXPECT_EQ(orders_.AwaitedUntil(), cluster_.now() + absl::Minutes(2));
}

TEST_F(CopyOrdersTest, CopiesOfOthersAreRefused) {
  Open(0, 3);
  orders_.OnCopied(*cluster_.members().Aggregator("agg-0"), CopyOf(0, 3));
  EXPECT_EQ(Counter("refused_malformed"), 1U);
  EXPECT_EQ(Counter("shards_copied"), 0U);
}

TEST_F(CopyOrdersTest, CopyThatIsBehindIsReportedOnce) {
  Open(0, 3);
  Open(1, 3);
  orders_.Report();
  EXPECT_THAT(NewEvents(), IsEmpty());
  Close({0, 1});
  orders_.Report();
  EXPECT_THAT(NewEvents(), IsEmpty()) << "the commit waits for it";
  run_.made.Finish();
  record().set_version(4);
  Copied(1, 4);
  EXPECT_THAT(NewEvents(),
              ElementsAre("the copy of shard 0 on aggregator agg-1 is behind since version 4: the "
                          "aggregator is away or slow, and the run goes on"));
  orders_.Report();
  EXPECT_THAT(NewEvents(), IsEmpty());
  EXPECT_FALSE(orders_.copies().Awaits(0, {4, 40})) << "until it has the newest version again";
  Copied(0, 4);
  EXPECT_THAT(NewEvents(), ElementsAre("the copy of shard 0 on aggregator agg-1 has the newest "
                                       "version again, version 4"));
}

TEST_F(CopyOrdersTest, CopyOfALostShardIsOneOfItsNewestVersions) {
  EXPECT_FALSE(orders_.VersionFor(0).has_value());
  Open(1, 3);
  ASSERT_TRUE(orders_.VersionFor(0).has_value());
  EXPECT_EQ(orders_.VersionFor(0)->version, 3U);
  EXPECT_EQ(orders_.VersionFor(0)->digest, 30U);
  Close({1});
  EXPECT_EQ(orders_.VersionFor(0)->version, 3U);
  Copied(0, 4);
  EXPECT_EQ(orders_.VersionFor(0)->version, 3U) << "the shard has not applied round 4";
  Close({0, 1});
  EXPECT_EQ(orders_.VersionFor(0)->version, 4U);
  EXPECT_EQ(orders_.VersionFor(0)->digest, 40U);
}

TEST_F(CopyOrdersTest, LostShardFetchesItsCopy) {
  orders_.SendBack(0);
  EXPECT_THAT(Orders(), IsEmpty()) << "there is none";
  Open(1, 3);
  orders_.SendBack(0);
  const std::vector<v1::CopyShard> orders = Orders();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].aggregator(), "agg-1");
  EXPECT_EQ(orders[0].shard(), 0U);
  EXPECT_EQ(orders[0].version(), 3U);
}

TEST_F(CopyOrdersTest, StatusHasTheNewestVersionOfEachCopy) {
  Open(1, 3);
  v1::RunStatus status;
  orders_.FillStatus(status);
  ASSERT_EQ(status.copies_size(), 2);
  EXPECT_EQ(status.copies(0).DebugString(), Parse<v1::ShardCopyStatus>(R"(
      shard: 0 aggregator: "agg-1" version: 3)")
                                                .DebugString());
  EXPECT_EQ(status.copies(1).DebugString(), Parse<v1::ShardCopyStatus>(R"(
      shard: 1 aggregator: "agg-0")")
                                                .DebugString());
}

}  // namespace
}  // namespace cadre
