// A shard host whose disk is full, or would be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "base/digest.h"
#include "server/client/refusal.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/memory_file_system.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A rank may stage nothing; its contribution has no chunks.
TEST_F(ShardHostTest, EmptyContributionNeedsNoSpace) {
  Open();
  const int64_t reserved = host_->ReservedBytes();
  auto staging = host_->Stage(Header(run_, {}, 0, 0, kChunkValues));
  ASSERT_TRUE(staging.ok()) << staging.status();
  EXPECT_EQ(staging->grant.chunks, 0u);
  EXPECT_EQ(host_->ReservedBytes(), reserved);
}

// 15 parameters: three kept versions, a new one, and the contributions of two groups.
TEST_F(ShardHostTest, RunWithoutSpaceIsRefused) {
  constexpr int64_t kNeeded = 15 * 4 * 6;
  int64_t free = kNeeded - 1;
  free_bytes_ = [&] { return free; };
  Restart();
  EXPECT_THAT(Open().error(), HasSubstr("needs 360 bytes, 359 are free"));
  EXPECT_TRUE(host_->States().empty());
  EXPECT_EQ(host_->ReservedBytes(), 0);
  free = kNeeded;
  EXPECT_EQ(Open().error(), "");
  EXPECT_EQ(host_->ReservedBytes(), kNeeded - 60) << "version 0 is stored";
  // What is reserved for one run is not free for another.
  free = 2 * kNeeded - 61;
  run_.run = "run-2";
  EXPECT_THAT(Open().error(), HasSubstr("300 of these are reserved"));
  ++free;
  EXPECT_EQ(Open().error(), "");
  ASSERT_TRUE(host_->CloseRun("run-2").ok());
  EXPECT_EQ(host_->ReservedBytes(), kNeeded - 60) << "an ended run needs nothing";
  // A run that is open already continues, whatever the disk has.
  run_.run = "run-1";
  free = 0;
  EXPECT_EQ(Open().error(), "");
  Restart();
  EXPECT_EQ(host_->ReservedBytes(), kNeeded - 60);
}

// The version is to be fetched from another aggregator.
TEST_F(ShardHostTest, HollowShardWithoutSpaceIsRefused) {
  int64_t free = 15 * 4 * 6 - 1;
  free_bytes_ = [&] { return free; };
  Restart();
  v1::OpenRun open = run_.Open();
  open.set_version(5);
  open.set_hollow(5);
  auto opened = host_->OpenRun(open);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->error(), HasSubstr("the disk has too little space"));
  EXPECT_EQ(host_->ReservedBytes(), 0);
  ++free;
  opened = host_->OpenRun(open);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->error(), "");
  EXPECT_TRUE(opened->hollow());
  EXPECT_EQ(host_->ReservedBytes(), 15 * 4 * 6);
}

// The units of this model would take 6 GB.
TEST_F(ShardHostTest, SpaceIsCheckedBeforeUnitsAreMade) {
  free_bytes_ = [] { return int64_t{1} << 30; };
  Restart();
  v1::OpenRun open = run_.Open();
  v1::RunSpec& spec = *open.mutable_spec();
  spec.mutable_model()->Clear();
  v1::OpaqueParameter& parameter = *spec.mutable_model()->mutable_opaque()->add_parameter();
  parameter.set_name("w");
  parameter.add_shape(uint64_t{1} << 40);
  spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_INT8);
  rusage before;
  ASSERT_EQ(getrusage(RUSAGE_SELF, &before), 0);
  const auto opened = host_->OpenRun(open);
  rusage after;
  ASSERT_EQ(getrusage(RUSAGE_SELF, &after), 0);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->error(), HasSubstr("the disk has too little space"));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 256 << 10) << "KiB";
}

TEST_F(ShardHostTest, FullDiskResumesStaging) {
  Open();
  const std::vector<float> values = Values(1, 15);
  {
    // Room for the header (32 bytes and the message), one chunk and half of the next.
    v1::ContributionHeader header = Header(run_, {}, 0, 15, kChunkValues);
    header.clear_proof();
    const FileSizeLimit full(32 + header.ByteSizeLong() + 30);
    const absl::Status status = Stage({}, values);
    EXPECT_THAT(status, IsError(absl::StatusCode::kResourceExhausted, "stage-1-0-1-0"));
    EXPECT_THAT(Apply(MakeApply(run_, 1, {{}})).missing(), ElementsAre(0u));
    EXPECT_EQ(PullAll(0).size(), 15u);
  }
  EXPECT_EQ(counters_.Get("disk_full"), 1u);
  auto staging = host_->Stage(Header(run_, {}, 0, 15, kChunkValues));
  ASSERT_TRUE(staging.ok()) << staging.status();
  EXPECT_EQ(staging->grant.next_chunk, 1u);
  ASSERT_TRUE(PutChunks(*staging, values, 4).ok());
  ASSERT_TRUE(host_->Finish(*staging).ok());
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).digest(), Digest(values, 0));
}

TEST_F(ShardHostTest, FullDiskAtHeaderLeavesNothing) {
  Open();
  {
    const FileSizeLimit full(16);
    EXPECT_EQ(Stage({}, Values(1, 15)).code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version-0"));
  EXPECT_TRUE(Stage({}, Values(1, 15)).ok());
}

// It may pass before the error is counted, so the number of free descriptors does not tell.
TEST(DiskSpace, OpenFilesThatAreExhaustedAreNotAFullDisk) {
  MemoryFileSystem files;
  Counters counters;
  auto host = ShardHost::Open(
      {.data_dir = "/data", .name = "agg-0", .counters = &counters, .files = &files});
  ASSERT_TRUE(host.ok()) << host.status();
  const SmallRun run;
  ASSERT_TRUE((*host)->OpenRun(run.Open()).ok());
  files.FailReads("/data/run-1/version-0", EMFILE);
  EXPECT_THAT((*host)->Pull(PullOf(run, 0, 0, 15)),
              IsError(absl::StatusCode::kResourceExhausted, "the limit of open files"));
  EXPECT_EQ(counters.Get("open_files_exhausted"), 1u);
  EXPECT_EQ(counters.Get("disk_full"), 0u);
}

TEST_F(ShardHostTest, FullDiskRetriesApply) {
  Open();
  const std::vector<float> values = Values(1, 15);
  ASSERT_TRUE(Stage({}, values).ok());
  const v1::Apply apply = MakeApply(run_, 1, {{}});
  {
    const FileSizeLimit full(100);
    const auto applied = host_->Apply(apply);
    EXPECT_THAT(applied, IsError(absl::StatusCode::kResourceExhausted, "version-1.new"));
  }
  EXPECT_THAT(Files(RunPath("")), Not(Contains("version-1.new")));
  EXPECT_EQ(host_->States()[0].version(), 0u);
  EXPECT_EQ(Apply(apply).digest(), Digest(values, 0));
}

TEST_F(ShardHostTest, FullDiskRetriesOpenRun) {
  for (const uint64_t room : {0, 50, 127}) {
    // There is room for no run file, for half of one, or for the run file but not for all 128 bytes
    // of version 0.
    const FileSizeLimit full(room);
    EXPECT_EQ(host_->OpenRun(run_.Open()).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(host_->States(), IsEmpty());
    EXPECT_EQ(RefusalOf(Stage({}, Values(1, 15))), v1::REFUSAL_UNKNOWN_RUN);
  }
  EXPECT_EQ(Open().version(), 0u);
}

}  // namespace
}  // namespace cadre::testing
