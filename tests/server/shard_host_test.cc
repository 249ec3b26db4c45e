// Versions and contributions on a shard host.
#include "server/shard_host.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/digest.h"
#include "base/protocol.h"
#include "model/formats/safetensors.h"
#include "server/client/refusal.h"
#include "server/outer_update.h"
#include "server/run_terms.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST_F(ShardHostTest, VersionZeroFromSeed) {
  const v1::RunOpened opened = Open();
  EXPECT_EQ(opened.version(), 0u);
  const std::vector<float> values = PullAll(0);
  ASSERT_EQ(values.size(), 15u);
  std::vector<float> expected(15);
  const auto initial = MakeInitialVersion(run_.Open().spec(), RootedFiles::Unrestricted());
  ASSERT_TRUE(initial.ok());
  ASSERT_EQ(initial->values(0, expected), absl::OkStatus());
  EXPECT_TRUE(SameBits(values, expected));
  EXPECT_EQ(opened.digest(), Digest(expected, 0));
}

TEST_F(ShardHostTest, VersionZeroFromCheckpointOnceItFits) {
  const std::string path = folder_.path() + "/begin.safetensors";
  v1::OpenRun open = run_.Open();
  const std::string layer = open.spec().model().layer(0).name();
  open.mutable_spec()->mutable_checkpoint()->set_from(path);
  auto opened = host_->OpenRun(open);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->error(), HasSubstr(path)) << "the file is missing";
  EXPECT_EQ(opened->run(), open.run());

  const std::vector<float> values = Values(3, 15);
  // The tensors are in another order than in the model.
  const auto write = [&](int64_t rows) {
    auto writer = SafetensorsWriter::Create(
        path, {{layer + "/bias", {rows}}, {layer + "/weight", {rows, 4}}}, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ(writer->Append(std::span(values).subspan(4 * rows, rows)), absl::OkStatus());
    ASSERT_EQ(writer->Append(std::span(values).first(4 * rows)), absl::OkStatus());
    ASSERT_EQ(writer->Finish(), absl::OkStatus());
  };
  write(2);
  opened = host_->OpenRun(open);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(opened->error(), HasSubstr(layer + "/weight")) << "the file belongs to another model";
  EXPECT_FALSE(Pull(0, 0, 15).ok());

  write(3);
  opened = host_->OpenRun(open);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->error(), "");
  EXPECT_EQ(opened->digest(), Digest(values, 0));
  EXPECT_TRUE(SameBits(PullAll(0), values));
}

TEST_F(ShardHostTest, ShardsTogetherHoldTheModel) {
  const uint64_t whole = Open().digest();
  uint64_t sum = 0;
  for (uint32_t shard = 0; shard < 4; ++shard) {
    const TemporaryFolder folder;
    auto host = HostOn(folder.path());
    ASSERT_TRUE(host.ok());
    SmallRun part = run_;
    part.shards = 4;
    part.shard = shard;
    const auto opened = (*host)->OpenRun(part.Open());
    ASSERT_TRUE(opened.ok()) << opened.status();
    sum += opened->digest();
  }
  EXPECT_EQ(sum, whole);
}

TEST_F(ShardHostTest, EmptyShard) {
  run_.shards = 1000;
  run_.shard = 0;
  EXPECT_EQ(Open().digest(), 0u);
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
  Restart();
  EXPECT_EQ(Open().version(), 1u);
}

TEST_F(ShardHostTest, SingleParticipantKeepsBits) {
  Open();
  std::vector<float> values = Values(1, 15);
  values[0] = -0.0F;
  values[1] = std::numeric_limits<float>::signaling_NaN();
  values[2] = std::numeric_limits<float>::infinity();
  values[3] = std::numeric_limits<float>::denorm_min();
  ASSERT_TRUE(Stage({.samples = 3}, values).ok());
  const v1::Applied applied = Apply(MakeApply(run_, 1, {{.samples = 3}}));
  EXPECT_EQ(applied.error(), "");
  EXPECT_EQ(applied.digest(), Digest(values, 0));
  EXPECT_TRUE(std::isnan(applied.variance_between_groups())) << "one group has no discrepancy";
  EXPECT_TRUE(std::isnan(applied.displacement()));
  EXPECT_TRUE(SameBits(PullAll(1), values));
}

TEST_F(ShardHostTest, MeanIsInGroupOrder) {
  run_.groups = 3;
  Open();
  std::vector<std::vector<float>> groups;
  const std::vector<uint64_t> samples = {100, 250, 7};
  for (uint32_t g = 0; g < 3; ++g) {
    groups.push_back(Values(10 + g, 15));
    ASSERT_TRUE(Stage({.group = g, .samples = samples[g]}, groups[g]).ok());
  }
  EXPECT_EQ(Apply(MakeApply(run_, 1,
                            {{.group = 0, .samples = 100},
                             {.group = 1, .samples = 250},
                             {.group = 2, .samples = 7}}))
                .error(),
            "");
  std::vector<float> expected(15);
  for (size_t i = 0; i < 15; ++i) {
    // Each volatile value is rounded to fp32 separately.
    volatile float sum = 0;
    for (size_t g = 0; g < 3; ++g) {
      const float weight = samples[g] / 357.0;
      volatile float product = weight * groups[g][i];
      sum = g == 0 ? product : sum + product;
    }
    expected[i] = sum;
  }
  EXPECT_TRUE(SameBits(PullAll(1), expected));
}

TEST_F(ShardHostTest, BitsDoNotDependOnChunks) {
  run_.groups = 3;
  run_.in = 300;
  run_.out = 300;
  const int64_t n = run_.parameters();
  const v1::Apply apply = MakeApply(run_, 1,
                                    {{.group = 0, .ranks = 1, .samples = 5},
                                     {.group = 1, .ranks = 2, .samples = 9},
                                     {.group = 2, .ranks = 2, .samples = 2}});
  struct Slice {
    Place place;
    Interval positions;
  };
  const auto model = [&](uint32_t group) { return Values(20 + group, n); };
  std::vector<uint64_t> digests;
  for (const int64_t cut : {n / 3, n / 2, int64_t{1}}) {
    std::vector<Slice> slices = {{{.group = 0, .rank = 0, .samples = 5}, {0, n}},
                                 {{.group = 1, .rank = 0, .samples = 9}, {0, cut}},
                                 {{.group = 1, .rank = 1, .samples = 9}, {cut, n}},
                                 {{.group = 2, .rank = 0, .samples = 2}, {cut, n}},
                                 {{.group = 2, .rank = 1, .samples = 2}, {0, cut}}};
    std::reverse(slices.begin(), slices.begin() + cut % 5);
    const TemporaryFolder folder;
    StartOn(folder.path());
    Open();
    for (const Slice& slice : slices) {
      const std::vector<float> whole = model(slice.place.group);
      const std::vector<float> part(whole.begin() + slice.positions.begin,
                                    whole.begin() + slice.positions.end);
      ASSERT_TRUE(Stage(slice.place, part, slice.positions.begin, 1000 + cut % 7).ok());
    }
    const v1::Applied applied = Apply(apply);
    ASSERT_EQ(applied.error(), "");
    digests.push_back(applied.digest());
    EXPECT_EQ(applied.digest(), Digest(PullAll(1), 0));
    host_.reset();
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
}

TEST_F(ShardHostTest, PullsRangesInOrder) {
  run_.in = 700;
  run_.out = 300;
  Open();
  const std::vector<float> all = PullAll(0);
  v1::PullRequest request = PullOf(run_, 0, 0, 15);
  request.clear_ranges();
  const auto add = [&](uint32_t tensor, uint64_t begin, uint64_t end) {
    v1::Range& range = *request.add_ranges();
    range.set_tensor(tensor);
    range.set_begin(begin);
    range.set_end(end);
  };
  // The ranges cross borders of blocks and are in descending order; one is empty.
  add(1, 10, 20);
  add(0, 65530, 131080);
  add(0, 5, 5);
  add(0, 0, 3);
  auto pull = host_->Pull(request);
  ASSERT_TRUE(pull.ok()) << pull.status();
  const auto values = Drain(**pull);
  ASSERT_TRUE(values.ok());
  std::vector<float> expected(all.begin() + 210010, all.begin() + 210020);
  expected.insert(expected.end(), all.begin() + 65530, all.begin() + 131080);
  expected.insert(expected.end(), all.begin(), all.begin() + 3);
  EXPECT_TRUE(SameBits(*values, expected));
}

// --- Discrepancy between the groups

// The shard has the positions 7 to 15, so that the previous version is read at other positions than
// those of its file.
TEST_F(ShardHostTest, AppliedHasDiscrepancy) {
  run_.shards = 2;
  run_.shard = 1;
  Open();
  const std::vector<float> before = *Pull(0, 7, 15);
  const std::vector<std::vector<float>> groups = {Values(1, 8), Values(2, 8)};
  for (uint32_t g = 0; g < 2; ++g) ASSERT_TRUE(Stage({.group = g}, groups[g], 7).ok());
  const v1::Apply apply = MakeApply(run_, 1, {{.group = 0}, {.group = 1}});
  const v1::Applied applied = Apply(apply);
  double variance = 0;
  double displacement = 0;
  for (size_t i = 0; i < 8; ++i) {
    const double half = (double{groups[0][i]} - groups[1][i]) / 2;
    const double mean = (double{groups[0][i]} + groups[1][i]) / 2;
    variance += half * half;
    displacement += (mean - before[i]) * (mean - before[i]);
  }
  EXPECT_NEAR(applied.variance_between_groups(), variance, 1e-12 * variance);
  EXPECT_NEAR(applied.displacement(), displacement, 1e-12 * displacement);

  // A repeated order has the same answer to the last bit, also after a restart.
  EXPECT_EQ(Apply(apply).SerializeAsString(), applied.SerializeAsString());
  Restart();
  EXPECT_EQ(Apply(apply).SerializeAsString(), applied.SerializeAsString());
  ASSERT_TRUE(Stage({.round = 2}, groups[0], 7).ok());
  EXPECT_EQ(Apply(MakeApply(run_, 2, {{}})).error(), "");
  Restart();
  EXPECT_EQ(Apply(apply).SerializeAsString(), applied.SerializeAsString())
      << "the answer for the version before the newest is stored";
}

TEST_F(ShardHostTest, LostPreviousVersionIsTolerated) {
  Open();
  for (uint32_t g = 0; g < 2; ++g) ASSERT_TRUE(Stage({.group = g}, Values(1 + g, 15)).ok());
  fs::remove(RunPath("version-0"));
  const v1::Applied applied = Apply(MakeApply(run_, 1, {{.group = 0}, {.group = 1}}));
  EXPECT_EQ(applied.error(), "");
  EXPECT_EQ(applied.digest(), Digest(PullAll(1), 0));
  EXPECT_TRUE(std::isnan(applied.variance_between_groups()));
}

// --- Shards that have lost their files

// A version is its values and the states of the outer optimizer.
TEST_F(ShardHostTest, OuterStatesAreVersioned) {
  const v1::OuterStep step = WithMomentum({}).outer();
  Open();
  std::vector<float> expected = PullAll(0);
  std::vector<float> momentum(15);
  double momentum_squared = 0;
  for (uint32_t round = 1; round <= 3; ++round) {
    const std::vector<float> before = std::exchange(expected, Values(round, 15));
    ASSERT_TRUE(Stage({.round = round}, expected).ok());
    OuterUpdate(step, round).Update(before, expected, {momentum});
    const v1::Apply order = WithMomentum(MakeApply(run_, round, {{}}));
    const v1::Applied applied = Apply(order);
    EXPECT_EQ(applied.digest(), Digest(expected, 0));
    EXPECT_EQ(applied.outer().momentum_squared() > 0, round > 1);
    momentum_squared = applied.outer().momentum_squared();
    EXPECT_TRUE(SameBits(PullAll(round), expected));
    Restart();
    EXPECT_EQ(Apply(order).outer().momentum_squared(), momentum_squared) << "repeated";
  }
  EXPECT_THAT(Files(RunPath("")),
              ElementsAre("outer-2", "outer-3", "run", "version-2", "version-3"));
}

TEST_F(ShardHostTest, ReportsWhatIsStored) {
  EXPECT_FALSE(host_->ReportRun("run-1").has_open());
  Open();
  EXPECT_FALSE(host_->ReportRun("run-1").has_newest());
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  v1::Apply apply = MakeApply(run_, 1, {{}});
  apply.set_step(40);
  apply.mutable_division()->set_groups(2);
  const uint64_t digest = Apply(apply).digest();
  Restart();
  v1::RunReport report = host_->ReportRun("run-1");
  v1::OpenRun stored = run_.Open();
  stored.clear_keys();  // they are secret
  EXPECT_EQ(report.open().DebugString(), stored.DebugString());
  EXPECT_EQ(report.newest().SerializeAsString(), apply.SerializeAsString());
  EXPECT_EQ(report.state().version(), 1u);
  EXPECT_EQ(report.state().digest(), digest);
  EXPECT_FALSE(report.closed());
  ASSERT_TRUE(host_->CloseRun("run-1").ok());
  EXPECT_TRUE(host_->ReportRun("run-1").closed());
}

// --- Space

// They would stay in memory until the round is applied.
TEST_F(ShardHostTest, HeadersAreStoredWithoutWhatHasNoMeaning) {
  Open();
  const v1::ContributionHeader header = Header(run_, {}, 0, 15, kChunkValues);
  v1::ContributionHeader padded = header;
  for (int i = 0; i < 1000; ++i) padded.add_ranges();
  padded.GetReflection()->MutableUnknownFields(&padded)->AddLengthDelimited(
      1000, std::string(1 << 20, 'x'));
  padded.clear_proof();
  const auto first = host_->Stage(padded);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->grant.fresh);
  const auto second = host_->Stage(header);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE(second->grant.fresh) << "it is the same contribution";
}

TEST_F(ShardHostTest, ReportsTheHighestGeneration) {
  v1::OpenRun open = run_.Open();
  (*open.mutable_generations())[1] = 7;
  ASSERT_TRUE(host_->OpenRun(open).ok());
  EXPECT_EQ(host_->HighestGeneration(), 7u);
  Restart();
  EXPECT_EQ(host_->HighestGeneration(), 7u);
  v1::Fence fence;
  fence.set_run(run_.run);
  fence.set_generation(9);
  host_->Fence(fence);
  EXPECT_EQ(host_->HighestGeneration(), 9u);
}

// --- Files after every step

TEST_F(ShardHostTest, KeepsTwoVersions) {
  Open();
  for (uint32_t round = 1; round <= 4; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    EXPECT_EQ(Apply(MakeApply(run_, round, {{}})).error(), "");
  }
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version-3", "version-4"));
  EXPECT_TRUE(SameBits(PullAll(3), Values(3, 15)));
  EXPECT_THAT(Pull(2, 0, 15),
              IsError(absl::StatusCode::kFailedPrecondition, "version 4 is the current one"));
}

TEST_F(ShardHostTest, PullOutlivesItsVersion) {
  Open();
  const std::vector<float> zero = PullAll(0);
  auto pull = host_->Pull(PullOf(run_, 0, 0, 15));
  ASSERT_TRUE(pull.ok());
  for (uint32_t round = 1; round <= 2; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    Apply(MakeApply(run_, round, {{}}));
  }
  EXPECT_FALSE(Pull(0, 0, 15).ok());
  const auto values = Drain(**pull);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_TRUE(SameBits(*values, zero));
}

TEST_F(ShardHostTest, UnsafeNamesAreRefused) {
  for (const char* name : {"", ".", "..", "../x", "a/b", ".lock", "a b"}) {
    SmallRun bad = run_;
    bad.run = name;
    EXPECT_EQ(host_->OpenRun(bad.Open()).status().code(), absl::StatusCode::kInvalidArgument)
        << name;
    bad = run_;
    bad.lineage = name;
    EXPECT_EQ(host_->OpenRun(bad.Open()).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock"));
}

// --- The full disk

TEST_F(ShardHostTest, ReassignedShardDropsOldPart) {
  run_.shards = 2;
  EXPECT_EQ(Open().shards(), 2u);
  run_.shards = 1;
  {
    const FileSizeLimit full(127);  // the run file, but not version 0
    EXPECT_EQ(host_->OpenRun(run_.Open()).status().code(), absl::StatusCode::kResourceExhausted);
  }
  Restart();
  EXPECT_THAT(host_->States(), IsEmpty()) << "version 0 of the old shard must not be used";
  const TemporaryFolder folder;
  const auto fresh = HostOn(folder.path());
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ(Open().digest(), (*fresh)->OpenRun(run_.Open())->digest());
}

// The run may have gone on elsewhere, so that version 0 is not made again.
TEST_F(ShardHostTest, ReassignedShardWithoutVersionDropsOldPart) {
  run_.shards = 2;
  EXPECT_EQ(Open().shards(), 2u);
  run_.shard = 1;
  v1::OpenRun open = run_.Open();
  open.set_version(3);
  open.set_hollow(3);
  EXPECT_TRUE(host_->OpenRun(open)->hollow());
  Restart();
  EXPECT_THAT(host_->States(), IsEmpty()) << "version 0 of the old shard must not be used";
  open.clear_hollow();
  EXPECT_TRUE(host_->OpenRun(open)->hollow());
}

// --- Refusals are counted by name

TEST_F(ShardHostTest, RefusalsAreCounted) {
  Open();
  auto header = Header(run_, {}, 0, 15, kChunkValues);
  header.set_protocol(kProtocol + 2);
  EXPECT_THAT(std::string(host_->Stage(header).status().message()), StartsWith("protocol: "));
  auto pull = PullOf(run_, 0, 0, 15);
  pull.set_protocol(kProtocol + 2);
  EXPECT_EQ(RefusalOf(host_->Pull(pull).status()), v1::REFUSAL_PROTOCOL);
  EXPECT_EQ(counters_.Get("refused_protocol"), 2u);

  auto staging = host_->Stage(Header(run_, {}, 0, 15, kChunkValues));
  ASSERT_TRUE(staging.ok());
  v1::Chunk chunk = MakeChunk(0, Values(1, 4));
  chunk.set_crc32c(chunk.crc32c() ^ 1);
  EXPECT_EQ(RefusalOf(host_->Put(*staging, chunk).status()), v1::REFUSAL_WRONG_CRC);
  EXPECT_EQ(counters_.Get("refused_wrong_crc"), 1u);
  // The refused chunk has changed nothing.
  EXPECT_TRUE(PutChunks(*staging, Values(1, 15), 4).ok());
}

}  // namespace
}  // namespace cadre::testing
