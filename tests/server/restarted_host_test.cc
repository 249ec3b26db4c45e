// What a shard host finds in its folder after a restart: complete, damaged and foreign files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stop_token>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "server/checked_file.h"
#include "server/client/refusal.h"
#include "tests/base/expect.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ShardHostTest, DamagedOuterStatesLoseTheVersion) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  Apply(WithMomentum(MakeApply(run_, 1, {{}})));
  std::string bytes = ReadAll(RunPath("outer-1"));
  bytes.back() ^= 1;
  WriteAll(RunPath("outer-1"), bytes);
  ASSERT_TRUE(Stage({.round = 2}, Values(2, 15)).ok());
  const v1::Apply order = WithMomentum(MakeApply(run_, 2, {{}}));
  EXPECT_THAT(host_->Apply(order), IsError(absl::StatusCode::kUnavailable, "outer-1"));
  EXPECT_THAT(host_->CheckFiles(), IsError(absl::StatusCode::kFailedPrecondition, "outer-1"));
  Restart();
  EXPECT_EQ(host_->States()[0].version(), 0u);
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version-0", "version.damaged"));
}

// Errors in a folder that was removed are not permanent: another process can continue.
TEST_F(ShardHostTest, RemovedFolderIsNoticed) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  EXPECT_EQ(host_->CheckFiles(), absl::OkStatus());
  fs::remove_all(RunPath(""));
  EXPECT_THAT(host_->CheckFiles(),
              IsError(absl::StatusCode::kFailedPrecondition, folder_.path() + " was removed"));
  EXPECT_TRUE(absl::IsUnavailable(Stage({.group = 1}, Values(1, 15))));
  EXPECT_TRUE(absl::IsUnavailable(host_->Apply(MakeApply(run_, 1, {{}})).status()));
  EXPECT_TRUE(absl::IsUnavailable(Pull(0, 0, 15).status()));
  EXPECT_TRUE(absl::IsUnavailable(host_->OpenRun(run_.Open()).status()));
  EXPECT_FALSE(fs::exists(RunPath("")));
  fs::remove_all(folder_.path());
  EXPECT_FALSE(host_->CheckFiles().ok());
}

TEST_F(ShardHostTest, EveryStepSurvivesARestart) {
  const v1::RunOpened opened = Open();
  Restart();
  ASSERT_EQ(host_->States().size(), 1u);
  EXPECT_EQ(host_->States()[0].digest(), opened.digest());
  EXPECT_EQ(host_->States()[0].lineage(), run_.lineage);

  const std::vector<float> first = Values(1, 15);
  const std::vector<float> second = Values(2, 15);
  ASSERT_TRUE(Stage({.group = 0}, first).ok());
  Restart();
  // The process crashes when half of the chunks of the other group are stored.
  auto staging = host_->Stage(Header(run_, {.group = 1}, 0, 15, kChunkValues));
  ASSERT_TRUE(staging.ok()) << staging.status();
  ASSERT_TRUE(PutChunks(*staging, second, 2).ok());
  *staging = Staging();
  Restart();
  staging = host_->Stage(Header(run_, {.group = 1}, 0, 15, kChunkValues));
  ASSERT_TRUE(staging.ok());
  EXPECT_EQ(staging->grant.next_chunk, 2u);
  ASSERT_TRUE(PutChunks(*staging, second, 4).ok());
  ASSERT_TRUE(host_->Finish(*staging).ok());
  *staging = Staging();
  Restart();

  const v1::Apply apply = MakeApply(run_, 1, {{.group = 0}, {.group = 1}});
  const v1::Applied applied = Apply(apply);
  EXPECT_EQ(applied.error(), "");
  Restart();
  EXPECT_EQ(host_->States()[0].version(), 1u);
  EXPECT_EQ(host_->States()[0].digest(), applied.digest());
  // A repeated order has the same answer.
  EXPECT_EQ(Apply(apply).digest(), applied.digest());
  EXPECT_EQ(Digest(PullAll(1), 0), applied.digest());
  EXPECT_EQ(PullAll(0).size(), 15u);
  // The round's contributions are removed.
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version-0", "version-1"));

  ASSERT_TRUE(host_->CloseRun(run_.run).ok());
  Restart();
  EXPECT_EQ(RefusalOf(Stage({.round = 2}, first)), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_TRUE(SameBits(PullAll(1), PullAll(1)));
  EXPECT_EQ(Open().version(), 1u);
  EXPECT_TRUE(Stage({.round = 2}, first).ok());
}

TEST_F(ShardHostTest, VersionKeepsItsOrder) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  v1::Apply apply = MakeApply(run_, 1, {{}});
  apply.set_step(40);
  apply.set_samples(5000);
  const uint64_t digest = Apply(apply).digest();
  Restart();
  ASSERT_EQ(host_->States().size(), 1u);
  const v1::ShardState state = host_->States()[0];
  EXPECT_EQ(state.version(), 1u);
  EXPECT_EQ(state.shards(), 1u);
  EXPECT_EQ(state.step(), 40u);
  EXPECT_EQ(state.samples(), 5000u);
  EXPECT_EQ(Apply(apply).digest(), digest);
  const v1::Applied other = Apply(MakeApply(run_, 1, {{.group = 1}}));
  EXPECT_THAT(other.error(), HasSubstr("was made of group 0"));
  EXPECT_EQ(other.refusal(), v1::REFUSAL_CLOSED_ROUND);
}

// A file of a newer format ends the start, and stays where it is.
TEST_F(ShardHostTest, NewerFormatsAreRefused) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  Apply(WithMomentum(MakeApply(run_, 1, {{}})));
  host_.reset();
  const auto expect_refused = [&](const std::string& name, int format, int newest) {
    const auto host = HostOn(folder_.path());
    for (const std::string& part : {absl::StrCat(RunPath(name), ": format ", format),
                                    absl::StrCat("formats up to ", newest, ":")}) {
      EXPECT_THAT(host, IsError(absl::StatusCode::kFailedPrecondition, part));
    }
    EXPECT_TRUE(fs::exists(RunPath(name)));
  };
  for (const char* const name : {"version-1", "outer-1"}) {
    const std::string whole = ReadAll(RunPath(name));
    {
      const auto file =
          BlockFile::Open(PosixFileSystem(), RunPath(name), Access::kReadWrite).value();
      std::string meta = file->head().meta;
      meta[4] = 7;
      ASSERT_EQ(file->RewriteHead(meta, file->head().data_bytes), absl::OkStatus());
    }
    expect_refused(name, 7, 0);
    WriteAll(RunPath(name), whole);
  }
  const std::string whole = ReadAll(RunPath("run"));
  ASSERT_EQ(WriteChecked(PosixFileSystem(), RunPath("run"), "CDRFMT02 and more"), absl::OkStatus());
  expect_refused("run", 2, 1);
  WriteAll(RunPath("run"), whole);
  Restart();
  EXPECT_EQ(host_->States()[0].version(), 1u);
}

TEST_F(ShardHostTest, RestartRemovesObsoleteFiles) {
  Open();
  const std::string zero = ReadAll(RunPath("version-0"));
  for (uint32_t round = 1; round <= 10; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    Apply(MakeApply(run_, round, {{}}));
  }
  // These files exist if the process was killed before it removed them.
  WriteAll(RunPath("version-0"), zero);
  WriteAll(RunPath("stage-10-0-1-0"), zero);
  WriteAll(RunPath("version-11.new"), "half");
  Restart();
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version-10", "version-9"));
  EXPECT_EQ(host_->States()[0].version(), 10u);
}

TEST_F(ShardHostTest, DamagedVersionIsNotServed) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  Apply(MakeApply(run_, 1, {{}}));
  const std::string whole = ReadAll(RunPath("version-1"));
  std::string flipped = whole;
  flipped[flipped.size() - 3] ^= 1;
  for (const std::string& bad : {whole.substr(0, whole.size() - 1), flipped, std::string()}) {
    // While the version is served:
    WriteAll(RunPath("version-1"), bad);
    EXPECT_EQ(host_->CheckFiles(), absl::OkStatus());
    EXPECT_THAT(Pull(1, 0, 15), IsError(absl::StatusCode::kUnavailable, "version-1"));
    EXPECT_THAT(host_->CheckFiles(), IsError(absl::StatusCode::kFailedPrecondition, "version-1"));
    // After a restart, which falls back to the undamaged version:
    Restart();
    EXPECT_EQ(host_->States()[0].version(), 0u);
    EXPECT_THAT(Files(RunPath("")), Contains("version.damaged"));
    EXPECT_EQ(Pull(1, 0, 15).status().code(), absl::StatusCode::kUnavailable);
    fs::remove(RunPath("version.damaged"));
    WriteAll(RunPath("version-1"), whole);
    Restart();
    EXPECT_EQ(host_->States()[0].version(), 1u);
  }
}

TEST_F(ShardHostTest, RunIsServedWhenItsFilesAreVerified) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  const uint64_t digest = Apply(MakeApply(run_, 1, {{}})).digest();
  ASSERT_TRUE(Stage({.round = 2}, Values(2, 15)).ok());
  std::string damaged = ReadAll(RunPath("version-1"));
  damaged[damaged.size() - 3] ^= 1;
  WriteAll(RunPath("version-1"), damaged);
  const std::vector<std::string> files = Files(RunPath(""));

  verify_ = false;
  Restart();
  ASSERT_EQ(host_->States().size(), 1u);
  EXPECT_EQ(host_->States()[0].version(), 1u) << "as the head says";
  EXPECT_EQ(host_->States()[0].digest(), digest);
  EXPECT_EQ(host_->HighestGeneration(), run_.generation);
  EXPECT_EQ(host_->ReportRun(run_.run).open().lineage(), run_.lineage);
  // Two versions and a contribution of 15 values.
  EXPECT_EQ(host_->Unverified().at(run_.run).bytes, 180u);
  const std::string busy = "busy: the aggregator has started, and 0 of 180 bytes";
  EXPECT_THAT(host_->Authenticate(Header(run_, {}, 0, 15, kChunkValues)),
              IsError(absl::StatusCode::kUnavailable, busy));
  EXPECT_THAT(Pull(0, 0, 15), IsError(absl::StatusCode::kUnavailable, busy));
  const std::string waits = "0 of 180 bytes of its files are verified";
  EXPECT_THAT(host_->OpenRun(run_.Open()), IsError(absl::StatusCode::kUnavailable, waits));
  EXPECT_THAT(host_->Apply(MakeApply(run_, 2, {{}})),
              IsError(absl::StatusCode::kUnavailable, waits));
  EXPECT_THAT(host_->CloseRun(run_.run), IsError(absl::StatusCode::kUnavailable, waits));
  EXPECT_EQ(Files(RunPath("")), files);

  std::stop_source stop;
  stop.request_stop();
  EXPECT_THAT(host_->Verify(run_.run, stop.get_token()), IsError(absl::StatusCode::kCancelled, ""));
  EXPECT_EQ(host_->Verify("another run"), absl::OkStatus());
  EXPECT_EQ(host_->Unverified().size(), 1u);
  EXPECT_EQ(host_->Verify(run_.run), absl::OkStatus());
  EXPECT_TRUE(host_->Unverified().empty());
  EXPECT_EQ(host_->States()[0].version(), 0u);
  EXPECT_THAT(Files(RunPath("")), Contains("version.damaged"));
  EXPECT_EQ(Open().version(), 0u);
  EXPECT_EQ(PullAll(0).size(), 15u);
}

TEST_F(ShardHostTest, RunsThatHaveEndedAreNotVerified) {
  Open();
  ASSERT_TRUE(host_->CloseRun(run_.run).ok());
  verify_ = false;
  Restart();
  EXPECT_TRUE(host_->Unverified().empty());
  EXPECT_TRUE(host_->States()[0].closed());
  EXPECT_EQ(PullAll(0).size(), 15u);
}

TEST_F(ShardHostTest, RunIsDeletedBeforeItsFilesAreVerified) {
  Open();
  verify_ = false;
  Restart();
  v1::DeleteRun order;
  order.set_run(run_.run);
  order.set_lineage(run_.lineage);
  EXPECT_EQ(host_->DeleteRun(order), absl::OkStatus());
  EXPECT_TRUE(host_->Unverified().empty());
  EXPECT_TRUE(host_->States().empty());
}

TEST_F(ShardHostTest, DamagedContributionMayBeRestaged) {
  Open();
  const std::vector<float> values = Values(1, 15);
  ASSERT_TRUE(Stage({}, values).ok());
  std::string bytes = ReadAll(RunPath("stage-1-0-1-0"));
  bytes[bytes.size() - 1] ^= 0x40;
  WriteAll(RunPath("stage-1-0-1-0"), bytes);
  const v1::Apply apply = MakeApply(run_, 1, {{}});
  EXPECT_THAT(host_->Apply(apply), IsError(absl::StatusCode::kDataLoss, "stage-1-0-1-0"));
  EXPECT_THAT(Apply(apply).missing(), ElementsAre(0u));
  EXPECT_EQ(host_->States()[0].version(), 0u);
  EXPECT_GE(counters_.Get("damaged_files"), 1u);
  ASSERT_TRUE(Stage({}, values).ok());
  EXPECT_EQ(Apply(apply).digest(), Digest(values, 0));
}

TEST_F(ShardHostTest, RestartKeepsLeadingChunks) {
  Open();
  const std::vector<float> values = Values(1, 15);
  ASSERT_TRUE(Stage({}, values).ok());
  const std::string whole = ReadAll(RunPath("stage-1-0-1-0"));
  // The file has three blocks of 4 + 16 bytes and one of 4 + 12. It is truncated inside the third.
  WriteAll(RunPath("stage-1-0-1-0"), whole.substr(0, whole.size() - 20));
  Restart();
  EXPECT_THAT(Apply(MakeApply(run_, 1, {{}})).missing(), ElementsAre(0u));
  auto staging = host_->Stage(Header(run_, {}, 0, 15, kChunkValues));
  ASSERT_TRUE(staging.ok()) << staging.status();
  EXPECT_EQ(staging->grant.next_chunk, 2u);
  ASSERT_TRUE(PutChunks(*staging, values, 4).ok());
  ASSERT_TRUE(host_->Finish(*staging).ok());
  EXPECT_EQ(ReadAll(RunPath("stage-1-0-1-0")), whole);
  // A contribution with a damaged header cannot be resumed.
  std::string headless = whole;
  headless[40] ^= 1;
  WriteAll(RunPath("stage-1-0-1-0"), headless);
  *staging = Staging();
  Restart();
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version-0"));
}

TEST_F(ShardHostTest, DamagedRunFileIsArchived) {
  Open();
  SmallRun other = run_;
  other.run = "run-2";
  ASSERT_TRUE(host_->OpenRun(other.Open()).ok());
  std::string bytes = ReadAll(RunPath("run"));
  bytes[5] ^= 1;
  WriteAll(RunPath("run"), bytes);
  Restart();
  ASSERT_EQ(host_->States().size(), 1u);
  EXPECT_EQ(host_->States()[0].run(), "run-2");
  EXPECT_THAT(Files(folder_.path()), Contains(".old-run-1-damaged"));
  EXPECT_EQ(Open().version(), 0u);
}

TEST_F(ShardHostTest, ForeignFoldersAreLeftAlone) {
  fs::create_directory(folder_.path() + "/photos");
  WriteAll(folder_.path() + "/photos/cat.jpg", "cat");
  Restart();
  EXPECT_EQ(ReadAll(folder_.path() + "/photos/cat.jpg"), "cat");
}

TEST_F(ShardHostTest, OtherLineageArchivesFiles) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  Apply(MakeApply(run_, 1, {{}}));
  run_.lineage = "lineage-b";
  run_.seed = 8;
  EXPECT_EQ(Open().version(), 0u);
  EXPECT_THAT(Files(folder_.path()), Contains(".old-run-1-lineage-a"));
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version-0"));
  Restart();
  ASSERT_EQ(host_->States().size(), 1u);
  EXPECT_EQ(host_->States()[0].lineage(), "lineage-b");
}

TEST_F(ShardHostTest, FolderIsExclusive) {
  EXPECT_THAT(HostOn(folder_.path()),
              IsError(absl::StatusCode::kFailedPrecondition, "in use by another aggregator"));
  host_.reset();
  EXPECT_EQ(HostOn(folder_.path()).status(), absl::OkStatus());
}

TEST_F(ShardHostTest, UnusableFolderIsAnError) {
  WriteAll(folder_.path() + "/file", "x");
  const absl::Status opened = HostOn(folder_.path() + "/file/data").status();
  EXPECT_THAT(std::string(opened.message()), HasSubstr("/file/data"));
}

}  // namespace
}  // namespace cadre::testing
