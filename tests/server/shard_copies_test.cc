// Copies of shards, on two shard hosts that fetch versions from one another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/status.h"
#include "server/client/shard_span.h"
#include "server/copies/copy_execution.h"
#include "server/order_execution.h"
#include "server/shard_host.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ShardCopiesTest : public ::testing::Test {
 protected:
  struct Host {
    TemporaryFolder folder;
    Counters counters;
    std::unique_ptr<ShardHost> host;
  };

  void SetUp() override {
    for (uint32_t shard = 0; shard < 2; ++shard) {
      Restart(shard);
      Open(shard);
    }
  }

  static SmallRun RunOf(uint32_t shard) { return {.ranks = 1, .shard = shard, .shards = 2}; }
  static Interval SpanOf(uint32_t shard) { return ShardSpan(RunOf(shard).parameters(), shard, 2); }
  static v1::OpenRun OpenOf(uint32_t shard, uint32_t version) {
    v1::OpenRun open = RunOf(shard).Open();
    v1::Averaging& averaging = *open.mutable_spec()->mutable_averaging();
    averaging.mutable_outer()->mutable_nesterov();
    averaging.set_copies(2);
    open.set_version(version);
    return open;
  }
  v1::RunOpened Open(uint32_t shard, uint32_t version = 0, std::optional<uint32_t> hollow = {}) {
    v1::OpenRun open = OpenOf(shard, version);
    if (hollow.has_value()) open.set_hollow(*hollow);
    v1::CoordinatorMessage order;
    *order.mutable_open_run() = open;
    const OrderResult result = ExecuteOrder(*hosts_[shard].host, order);
    EXPECT_TRUE(result.answer.has_value()) << result.repeat;
    return result.answer.has_value() ? result.answer->run_opened() : v1::RunOpened();
  }
  void Restart(uint32_t shard) {
    Host& host = hosts_[shard];
    host.host.reset();
    auto opened = ShardHost::Open(
        {host.folder.path() + "/data", absl::StrCat("agg-", shard), &host.counters});
    ASSERT_TRUE(opened.ok()) << opened.status();
    host.host = *std::move(opened);
  }
  void LoseDisk(uint32_t shard) {
    hosts_[shard].host.reset();
    std::filesystem::remove_all(hosts_[shard].folder.path() + "/data");
    Restart(shard);
  }
  std::string Folder(uint32_t shard) {
    return hosts_[shard].folder.path() + "/data/" + RunOf(shard).run;
  }

  // Stages a contribution of group 0 and makes the version of it.
  v1::Applied Apply(uint32_t shard, uint32_t round) {
    const SmallRun run = RunOf(shard);
    const Interval span = SpanOf(shard);
    ShardHost& host = *hosts_[shard].host;
    host.Fence(FenceOf(run.run, 0, run.generation));
    const std::vector<float> values = Values(round, span.size());
    auto staging = host.Stage(Header(run, {.round = round}, span.begin, span.end, 64));
    EXPECT_TRUE(staging.ok()) << staging.status();
    if (!staging.ok()) return {};
    EXPECT_TRUE(host.Put(*staging, MakeChunk(0, values)).ok());
    EXPECT_TRUE(host.Finish(*staging).ok());
    v1::Apply order = MakeApply(run, round, {{}});
    v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
    nesterov.set_learning_rate(0.7F);
    nesterov.set_momentum(0.9F);
    nesterov.set_every_rounds(1);
    const auto applied = host.Apply(order);
    EXPECT_TRUE(applied.ok()) << applied.status();
    return applied.ok() ? *applied : v1::Applied();
  }

  v1::CopyShard OrderOf(uint32_t shard, uint32_t version, uint64_t digest) {
    v1::CopyShard order;
    order.set_run(RunOf(shard).run);
    order.set_lineage(RunOf(shard).lineage);
    order.set_shard(shard);
    order.set_version(version);
    order.set_digest(digest);
    return order;
  }
  // The host of the shard `to` copies from the other one. `blocks`: of a file, so many arrive
  // before the connection breaks.
  OrderResult Copy(uint32_t to, const v1::CopyShard& order, uint64_t blocks = UINT64_MAX) {
    const CopyTransport transport =
        [&](const v1::CopyShard&, const v1::CopyRequest& request,
            const std::function<absl::Status(const v1::CopyReply&)>& on_reply) -> absl::Status {
      requests_.push_back(request);
      if (on_request_) on_request_();
      CADRE_ASSIGN_OR_RETURN(const auto file, hosts_[1 - to].host->OpenFile(request));
      v1::CopyReply head;
      head.set_meta(file->head().meta);
      head.set_block_bytes(file->head().block_bytes);
      head.set_data_bytes(file->head().data_bytes);
      CADRE_RETURN_IF_ERROR(on_reply(head));
      for (uint64_t i = request.first_block(); i < file->head().blocks(); ++i) {
        if (i >= request.first_block() + blocks) return absl::UnavailableError("broken");
        v1::CopyReply reply;
        std::string& data = *reply.mutable_chunk()->mutable_data();
        data.resize(file->head().BytesOf(i));
        CADRE_RETURN_IF_ERROR(file->ReadBlock(i, data));
        reply.mutable_chunk()->set_index(i);
        reply.mutable_chunk()->set_crc32c(Crc32c(data));
        if (damages_) data[0] ^= 1;
        CADRE_RETURN_IF_ERROR(on_reply(reply));
      }
      return absl::OkStatus();
    };
    return ExecuteCopy(*hosts_[to].host, order, transport);
  }

  std::map<uint32_t, Host> hosts_;
  std::vector<v1::CopyRequest> requests_;
  bool damages_ = false;
  std::function<void()> on_request_;
};

TEST_F(ShardCopiesTest, CopyHasTheBytesOfTheOriginal) {
  const v1::Applied applied = Apply(0, 1);
  const OrderResult result = Copy(1, OrderOf(0, 1, applied.digest()));
  ASSERT_TRUE(result.answer.has_value()) << result.repeat;
  EXPECT_EQ(result.answer->shard_copied().copy().version(), 1u);
  EXPECT_EQ(result.answer->shard_copied().copy().digest(), applied.digest());
  EXPECT_THAT(Files(Folder(1) + "/copy-0"), ElementsAre("outer-1", "version-1"));
  for (const char* const name : {"version-1", "outer-1"}) {
    EXPECT_EQ(ReadAll(Folder(1) + "/copy-0/" + name), ReadAll(Folder(0) + "/" + name));
  }
  // The order is idempotent.
  requests_.clear();
  EXPECT_TRUE(Copy(1, OrderOf(0, 1, applied.digest())).answer.has_value());
  EXPECT_THAT(requests_, IsEmpty());
}

TEST_F(ShardCopiesTest, HolderReportsItsCopiesAfterARestart) {
  EXPECT_THAT(Open(1).copies(), IsEmpty());
  const uint64_t first = Apply(0, 1).digest();
  Copy(1, OrderOf(0, 1, first));
  const uint64_t second = Apply(0, 2).digest();
  Copy(1, OrderOf(0, 2, second));
  Restart(1);
  const v1::RunOpened opened = Open(1);
  ASSERT_EQ(opened.copies_size(), 2);
  EXPECT_EQ(opened.copies(0).shard(), 0u);
  EXPECT_EQ(opened.copies(0).digest(), first);
  EXPECT_EQ(opened.copies(1).version(), 2u);
  EXPECT_EQ(opened.copies(1).digest(), second);
  // Damage is found when the process starts.
  std::string bytes = ReadAll(Folder(1) + "/copy-0/outer-2");
  bytes.back() ^= 1;
  WriteAll(Folder(1) + "/copy-0/outer-2", bytes);
  Restart(1);
  EXPECT_EQ(Open(1).copies_size(), 1);
}

TEST_F(ShardCopiesTest, TheNewestTwoVersionsAreKept) {
  for (uint32_t round = 1; round <= 3; ++round) {
    Copy(1, OrderOf(0, round, Apply(0, round).digest()));
  }
  EXPECT_THAT(Files(Folder(1) + "/copy-0"),
              ElementsAre("outer-2", "outer-3", "version-2", "version-3"));
}

TEST_F(ShardCopiesTest, LostShardContinuesWithItsMomentum) {
  Copy(1, OrderOf(0, 1, Apply(0, 1).digest()));
  const v1::Applied second = Apply(0, 2);
  Copy(1, OrderOf(0, 2, second.digest()));
  const std::string states = ReadAll(Folder(0) + "/outer-2");
  const v1::Applied third = Apply(0, 3);

  LoseDisk(0);
  EXPECT_TRUE(Open(0, 2).hollow());
  EXPECT_TRUE(Open(0, 2, /*hollow=*/1).hollow());
  const OrderResult result = Copy(0, OrderOf(0, 2, second.digest()));
  ASSERT_TRUE(result.answer.has_value()) << result.repeat;
  EXPECT_EQ(result.answer->applied().round(), 2u);
  EXPECT_EQ(result.answer->applied().digest(), second.digest());
  EXPECT_EQ(ReadAll(Folder(0) + "/outer-2"), states);
  EXPECT_EQ(Apply(0, 3).digest(), third.digest()) << "the momentum is part of version 3";
  Restart(0);
  EXPECT_EQ(Open(0, 2).version(), 3u);
}

TEST_F(ShardCopiesTest, ShardThatIsNotHollowIsNotReplaced) {
  const v1::Applied first = Apply(0, 1);
  Copy(1, OrderOf(0, 1, first.digest()));
  Apply(0, 2);
  EXPECT_FALSE(Copy(0, OrderOf(0, 1, first.digest())).answer.has_value());
  EXPECT_EQ(hosts_[0].host->States()[0].version(), 2u);
}

TEST_F(ShardCopiesTest, MissingCopyIsReported) {
  const v1::Applied first = Apply(0, 1);
  LoseDisk(0);
  Open(0, 1);
  Open(0, 1, /*hollow=*/0);
  const OrderResult result = Copy(0, OrderOf(0, 1, first.digest()));
  ASSERT_TRUE(result.answer.has_value());
  EXPECT_NE(result.answer->applied().error(), "");
}

TEST_F(ShardCopiesTest, WrongDigestIsNotStored) {
  const v1::Applied first = Apply(0, 1);
  const OrderResult result = Copy(1, OrderOf(0, 1, first.digest() + 1));
  EXPECT_FALSE(result.answer.has_value());
  EXPECT_THAT(result.repeat.message(), HasSubstr("is required"));
  EXPECT_THAT(Files(Folder(1) + "/copy-0"), IsEmpty());
}

TEST_F(ShardCopiesTest, BrokenConnectionsAndDamageAreRepeated) {
  const v1::Applied first = Apply(0, 1);
  damages_ = true;
  EXPECT_TRUE(absl::IsUnavailable(Copy(1, OrderOf(0, 1, first.digest())).repeat));
  damages_ = false;
  EXPECT_TRUE(absl::IsUnavailable(Copy(1, OrderOf(0, 1, first.digest()), /*blocks=*/0).repeat));
  EXPECT_THAT(Files(Folder(1) + "/copy-0"), IsEmpty());
  EXPECT_TRUE(Copy(1, OrderOf(0, 1, first.digest()), /*blocks=*/1).answer.has_value());
}

TEST_F(ShardCopiesTest, OnlyTheNextAggregatorHoldsACopy) {
  v1::CopyShard order = OrderOf(0, 1, Apply(0, 1).digest());
  order.set_shard(5);
  const OrderResult result = Copy(1, order);
  EXPECT_FALSE(result.answer.has_value());
  EXPECT_TRUE(result.repeat.ok()) << "the order is not repeated";
  order = OrderOf(0, 1, 7);
  order.set_lineage("lineage-b");
  EXPECT_FALSE(Copy(1, order).answer.has_value());
}

TEST_F(ShardCopiesTest, CopiesAreRemovedWithTheRun) {
  Copy(1, OrderOf(0, 1, Apply(0, 1).digest()));
  v1::DeleteRun order;
  order.set_run(RunOf(1).run);
  order.set_lineage(RunOf(1).lineage);
  ASSERT_TRUE(hosts_[1].host->DeleteRun(order).ok());
  EXPECT_FALSE(std::filesystem::exists(Folder(1)));
}

TEST_F(ShardCopiesTest, StoredCopiesAreNotReserved) {
  const int64_t before = hosts_[1].host->ReservedBytes();
  const uint64_t digest = Apply(0, 1).digest();
  ASSERT_TRUE(Copy(1, OrderOf(0, 1, digest)).answer.has_value());
  // Values and momentum.
  EXPECT_EQ(before - hosts_[1].host->ReservedBytes(), 2 * 4 * SpanOf(0).size());
}

TEST_F(ShardCopiesTest, NoCopyIsMadeOfARunThatEndsMeanwhile) {
  const v1::CopyShard order = OrderOf(0, 1, Apply(0, 1).digest());
  on_request_ = [&] { ASSERT_TRUE(hosts_[1].host->CloseRun(RunOf(1).run).ok()); };
  const OrderResult result = Copy(1, order);
  EXPECT_FALSE(result.answer.has_value());
  EXPECT_EQ(result.repeat.message(), "the run is not open");
  EXPECT_THAT(Files(Folder(1) + "/copy-0"), IsEmpty());
  EXPECT_TRUE(Copy(1, order).repeat.ok()) << "the order is not repeated";
}

TEST_F(ShardCopiesTest, FilesOfOtherRunsAreNotSent) {
  v1::CopyRequest request;
  request.set_protocol(2);
  request.set_run("../run-1");
  EXPECT_TRUE(absl::IsInvalidArgument(hosts_[0].host->OpenFile(request).status()));
  request.set_run("run-2");
  EXPECT_TRUE(absl::IsNotFound(hosts_[0].host->OpenFile(request).status()));
  request.set_run("run-1");
  request.set_lineage("lineage-b");
  EXPECT_TRUE(absl::IsNotFound(hosts_[0].host->OpenFile(request).status()));
}

}  // namespace
}  // namespace cadre::testing
