// Crashes at every change that a shard host makes to its disk, and failed syncs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/random.h"
#include "base/status.h"
#include "model/coding.h"
#include "model/frame.h"
#include "server/archive.h"
#include "server/shard_host.h"
#include "tests/base/expect.h"
#include "tests/base/memory_file_system.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

class ShardHostCrashTest : public ::testing::Test {
 protected:
  // A process on a disk of its own. `open` also creates the shard.
  void Begin() {
    host_.reset();
    files_ = std::make_unique<MemoryFileSystem>();
    ASSERT_TRUE(files_->MakeFolder("/data").ok());
    ASSERT_TRUE(files_->SyncFolder("/").ok());
    Start();
  }
  void Start() {
    auto host = ShardHost::Open({.data_dir = "/data",
                                 .name = "agg-0",
                                 .counters = &counters_,
                                 .files = files_.get(),
                                 .threads = 1,
                                 .archive = true});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }
  // `seed` selects what survives of that which is not durable.
  void CrashHost(uint64_t seed) {
    host_.reset();
    uint64_t drawn = 0;
    files_->CrashHost([&] { return RandomBits(seed, RandomStream::kTest, drawn++, 0) % 2 == 0; });
    Start();
  }

  v1::OpenRun Open() const {
    v1::OpenRun open = run_.Open();
    if (coded_) {
      open.mutable_spec()->mutable_averaging()->mutable_up()->set_codec(v1::CODEC_E3M0);
      open.mutable_spec()->mutable_averaging()->mutable_down()->set_codec(v1::CODEC_STAT2);
    }
    return open;
  }

  // What the coordinator and a group do until version `rounds` exists; all of it may be repeated.
  absl::StatusOr<uint64_t> MakeVersions(uint32_t rounds) {
    const auto opened = host_->OpenRun(Open());
    if (!opened.ok()) return opened.status();
    if (!opened->error().empty()) return absl::InternalError(opened->error());
    uint64_t digest = 0;
    for (uint32_t round = std::max(1U, opened->version()); round <= rounds; ++round) {
      if (opened->version() < round) {
        if (const absl::Status staged = Stage(round); !staged.ok()) return staged;
      }
      v1::Apply order = MakeApply(run_, round, {{}});
      if (outer_.has_optimizer()) *order.mutable_outer() = outer_;
      if (coded_) {
        *order.mutable_up() = *CodingOf(Open().spec().averaging().up());
        *order.mutable_down() = *CodingOf(Open().spec().averaging().down());
      }
      const auto applied = host_->Apply(order);
      if (!applied.ok()) return applied.status();
      if (!applied->error().empty()) return absl::InternalError(applied->error());
      if (!applied->missing().empty()) return absl::DataLossError("an acknowledged contribution");
      digest = applied->digest();
    }
    return digest;
  }

  absl::Status Stage(uint32_t round = 1) {
    v1::ContributionHeader header = Header(run_, {.round = round}, 0, std::ssize(values_), kChunk);
    std::vector<float> elements = values_;
    if (coded_) {
      const ExchangeUnits units(*ParameterIndex::FromModel(Open().spec().model()));
      std::string frame;
      CADRE_RETURN_IF_ERROR(EncodeFrame(units.all(), {CodecKind::kE3m0}, values_, &frame));
      elements.resize(frame.size() / sizeof(float));
      std::memcpy(elements.data(), frame.data(), frame.size());
      header.set_codec(v1::CODEC_E3M0);
      header.set_frame_elements(elements.size());
    }
    auto staging = host_->Stage(header);
    if (!staging.ok()) return staging.status();
    for (uint32_t i = staging->grant.next_chunk; i < staging->grant.chunks; ++i) {
      const size_t begin = size_t{i} * kChunk;
      const auto put = host_->Put(
          *staging, MakeChunk(i, std::span(elements).subspan(
                                     begin, std::min<size_t>(kChunk, elements.size() - begin))));
      if (!put.ok()) return put.status();
    }
    return host_->Finish(*staging);
  }

  static constexpr uint32_t kChunk = 4;
  SmallRun run_;
  // Outer step of every round, if it has an optimizer.
  v1::OuterStep outer_;
  // Contributions and versions are frames.
  bool coded_ = false;
  const std::vector<float> values_ = Values(1, 15);
  Counters counters_;
  std::unique_ptr<MemoryFileSystem> files_;
  std::unique_ptr<ShardHost> host_;
};

class ShardHostCrashesTest : public ShardHostCrashTest, public ::testing::WithParamInterface<bool> {
 protected:
  // Requires that the same messages lead to the same version after a crash at any change.
  void CrashEverywhere(uint32_t rounds) {
    Begin();
    const absl::StatusOr<uint64_t> expected = MakeVersions(rounds);
    ASSERT_TRUE(expected.ok()) << expected.status();
    int crashes = 0;
    for (uint64_t last = 1;; ++last) {
      Begin();
      files_->StopAfter(last);
      const absl::StatusOr<uint64_t> made = MakeVersions(rounds);
      if (made.ok()) break;
      ASSERT_TRUE(files_->stopped()) << made.status();
      ++crashes;
      if (const bool host_crashes = GetParam(); host_crashes) {
        CrashHost(last);
      } else {
        host_.reset();
        files_->EndProcess();
        Start();
      }
      const absl::StatusOr<uint64_t> repeated = MakeVersions(rounds);
      ASSERT_TRUE(repeated.ok()) << repeated.status() << ", after change " << last;
      ASSERT_EQ(*repeated, *expected) << "after change " << last;
      const auto archived = ReadArchive(*files_, "/data/" + run_.run);
      ASSERT_TRUE(archived.ok()) << archived.status() << ", after change " << last;
      ASSERT_EQ(archived->size(), rounds) << "after change " << last;
      for (const auto& [version, round] : *archived) {
        EXPECT_EQ(round.contributions.size(), 1U) << version << ", after change " << last;
      }
    }
    EXPECT_GT(crashes, 20);
  }
};
INSTANTIATE_TEST_SUITE_P(ProcessOrHost, ShardHostCrashesTest, ::testing::Bool());

TEST_P(ShardHostCrashesTest, EveryChangeMayBeTheLast) { CrashEverywhere(/*rounds=*/1); }

// No round is left out of the momentum, or counted twice.
TEST_P(ShardHostCrashesTest, EveryChangeOfOuterStatesMayBeTheLast) {
  v1::OuterNesterov& nesterov = *outer_.mutable_optimizer()->mutable_nesterov();
  nesterov.set_learning_rate(0.7F);
  nesterov.set_momentum(0.9F);
  nesterov.set_every_rounds(2);
  CrashEverywhere(/*rounds=*/4);
}

// Nothing that a frame has left out is lost, or added twice.
TEST_P(ShardHostCrashesTest, EveryChangeOfCodedRoundsMayBeTheLast) {
  coded_ = true;
  CrashEverywhere(/*rounds=*/3);
}

// Version and contributions that were acknowledged are durable.
TEST_F(ShardHostCrashTest, AcknowledgedDataSurvives) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Begin();
    ASSERT_TRUE(host_->OpenRun(run_.Open()).ok());
    ASSERT_TRUE(Stage().ok());
    CrashHost(seed);
    const auto applied = host_->Apply(MakeApply(run_, 1, {{}}));
    ASSERT_TRUE(applied.ok()) << applied.status();
    ASSERT_THAT(applied->missing(), ::testing::IsEmpty());
    ASSERT_EQ(applied->digest(), Digest(values_, 0));
    CrashHost(seed);
    const auto states = host_->States();
    ASSERT_EQ(states.size(), 1);
    ASSERT_EQ(states[0].version(), 1u);
    ASSERT_EQ(states[0].digest(), Digest(values_, 0));
  }
}

// The kernel reports once that it could not write pages, and drops them: what was staged before
// must be staged again.
TEST_F(ShardHostCrashTest, FailedSyncLosesTheContribution) {
  Begin();
  ASSERT_TRUE(host_->OpenRun(run_.Open()).ok());
  files_->FailNextSync();
  EXPECT_FALSE(Stage().ok());
  EXPECT_THAT(host_->Apply(MakeApply(run_, 1, {{}}))->missing(), ::testing::ElementsAre(0));
  ASSERT_TRUE(Stage().ok());
  CrashHost(/*seed=*/3);
  EXPECT_EQ(host_->Apply(MakeApply(run_, 1, {{}}))->digest(), Digest(values_, 0));
}

// A version whose sync failed is not reported; the next attempt writes it again.
TEST_F(ShardHostCrashTest, FailedSyncRepeatsTheApply) {
  Begin();
  ASSERT_TRUE(host_->OpenRun(run_.Open()).ok());
  ASSERT_TRUE(Stage().ok());
  files_->FailNextSync();
  const auto failed = host_->Apply(MakeApply(run_, 1, {{}}));
  EXPECT_FALSE(failed.ok()) << failed->ShortDebugString();
  EXPECT_EQ(host_->Apply(MakeApply(run_, 1, {{}}))->digest(), Digest(values_, 0));
  CrashHost(/*seed=*/4);
  EXPECT_EQ(host_->States()[0].version(), 1u);
}

// The groups stage it again.
TEST_F(ShardHostCrashTest, UnreadableContributionIsLost) {
  Begin();
  ASSERT_TRUE(host_->OpenRun(run_.Open()).ok());
  ASSERT_TRUE(Stage().ok());
  files_->FailReads("/data/run-1/stage-1-0-1-0", EIO);
  EXPECT_THAT(host_->Apply(MakeApply(run_, 1, {{}})),
              IsError(absl::StatusCode::kDataLoss, "stage-1"));
  EXPECT_THAT(host_->Apply(MakeApply(run_, 1, {{}}))->missing(), ::testing::ElementsAre(0));
  ASSERT_TRUE(Stage().ok());
  EXPECT_EQ(host_->Apply(MakeApply(run_, 1, {{}}))->digest(), Digest(values_, 0));
}

// The next process sets it aside.
TEST_F(ShardHostCrashTest, UnreadableVersionEndsTheProcess) {
  Begin();
  ASSERT_TRUE(MakeVersions(1).ok());
  files_->FailReads("/data/run-1/version-1", EIO);
  host_->Fence(FenceOf(run_.run, 0, run_.generation));
  EXPECT_THAT(host_->Pull(PullOf(run_, 1, 0, 15)),
              IsError(absl::StatusCode::kUnavailable, "version-1"));
  EXPECT_THAT(host_->CheckFiles(), IsError(absl::StatusCode::kFailedPrecondition, "version-1"));
  host_.reset();
  files_->EndProcess();
  Start();
  EXPECT_EQ(host_->States()[0].version(), 0u);
  EXPECT_TRUE(files_->Exists("/data/run-1/version.damaged"));
}

// The order is repeated until an operator has repaired the disk.
TEST_F(ShardHostCrashTest, ReadOnlyDiskDoesNotRefuseTheRound) {
  Begin();
  ASSERT_TRUE(host_->OpenRun(run_.Open()).ok());
  ASSERT_TRUE(Stage().ok());
  files_->SetReadOnly(true);
  EXPECT_THAT(host_->Apply(MakeApply(run_, 1, {{}})),
              IsError(absl::StatusCode::kPermissionDenied, "cannot"));
  files_->SetReadOnly(false);
  EXPECT_EQ(host_->Apply(MakeApply(run_, 1, {{}}))->digest(), Digest(values_, 0));
}

// A process with too many open files ends, and the next one finds everything.
TEST_F(ShardHostCrashTest, FailedStartKeepsFiles) {
  Begin();
  ASSERT_TRUE(MakeVersions(1).ok());
  ASSERT_TRUE(Stage(2).ok());
  for (const std::string file : {"run", "version-1", "stage-2-0-1-0"}) {
    host_.reset();
    files_->EndProcess();
    const std::string path = "/data/run-1/" + file;
    files_->FailReads(path, EMFILE);
    EXPECT_THAT(
        ShardHost::Open(
            {.data_dir = "/data", .name = "agg-0", .counters = &counters_, .files = files_.get()}),
        IsError(absl::StatusCode::kResourceExhausted, path));
    files_->FailReads(path, 0);
    Start();
    EXPECT_EQ(host_->States()[0].version(), 1u);
    EXPECT_EQ(host_->Apply(MakeApply(run_, 2, {{}, {.group = 1}}))->missing_size(), 1) << file;
  }
}

}  // namespace
}  // namespace cadre::testing
