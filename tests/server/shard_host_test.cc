// Tests of the shard host with its store: versions and contributions on disk, and restarts after a
// crash at any point.
#include "server/shard_host.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/protocol.h"
#include "model/formats/safetensors.h"
#include "server/client/refusal.h"
#include "server/outer_update.h"
#include "server/run_terms.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint32_t kChunkValues = 4;

class ShardHostTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }

  absl::StatusOr<std::unique_ptr<ShardHost>> HostOn(const std::string& folder,
                                                    size_t keep = kMaxClosedRuns) {
    return ShardHost::Open({folder, "agg-0", &counters_, keep});
  }

  void StartOn(const std::string& folder, size_t keep = kMaxClosedRuns) {
    host_.reset();
    auto host = HostOn(folder, keep);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }

  // Starts a new host on the folder, as if the process had been killed and restarted.
  void Restart() {
    ASSERT_NO_FATAL_FAILURE(StartOn(folder_.path()));
    // Keys are not stored: the coordinator sends them again.
    for (uint32_t group = 0; group < run_.groups; ++group) {
      host_->Fence(FenceOf(run_.run, group, run_.generation));
    }
  }

  v1::RunOpened Open() {
    const auto opened = host_->OpenRun(run_.Open());
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.value_or(v1::RunOpened());
  }

  absl::Status PutChunks(Staging& staging, const std::vector<float>& values, uint32_t until) {
    const uint32_t chunk = staging.file->head().block_bytes / sizeof(float);
    for (uint32_t i = staging.grant.next_chunk; i < until; ++i) {
      const size_t begin = size_t{i} * chunk;
      const size_t size = std::min<size_t>(chunk, values.size() - begin);
      const auto put = host_->Put(staging, MakeChunk(i, std::span(values).subspan(begin, size)));
      if (!put.ok()) return put.status();
      EXPECT_EQ(*put, i + 1 == staging.grant.chunks);
    }
    return absl::OkStatus();
  }

  absl::Status Stage(const Place& place, const std::vector<float>& values, int64_t begin = 0,
                     uint32_t chunk = kChunkValues) {
    auto staging = host_->Stage(Header(run_, place, begin, begin + values.size(), chunk));
    if (!staging.ok()) return staging.status();
    if (auto put = PutChunks(*staging, values, staging->grant.chunks); !put.ok()) return put;
    return host_->Finish(*staging);
  }

  absl::StatusOr<std::vector<float>> Pull(uint32_t version, int64_t begin, int64_t end) {
    auto pull = host_->Pull(PullOf(run_, version, begin, end));
    if (!pull.ok()) return pull.status();
    return Drain(**pull);
  }

  static absl::StatusOr<std::vector<float>> Drain(VersionPull& pull) {
    std::vector<float> values;
    while (pull.left() > 0) {
      float piece[5];
      const auto n = pull.Next({reinterpret_cast<char*>(piece), sizeof(piece)});
      if (!n.ok()) return n.status();
      values.insert(values.end(), piece, piece + *n);
    }
    return values;
  }

  std::vector<float> PullAll(uint32_t version) {
    const auto values = Pull(version, 0, run_.parameters());
    EXPECT_TRUE(values.ok()) << values.status();
    return values.ok() ? *values : std::vector<float>();
  }

  v1::Applied Apply(const v1::Apply& apply) {
    const auto applied = host_->Apply(apply);
    EXPECT_TRUE(applied.ok()) << applied.status();
    return applied.ok() ? *applied : v1::Applied();
  }

  static v1::Apply WithMomentum(v1::Apply order) {
    v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
    nesterov.set_learning_rate(0.7F);
    nesterov.set_momentum(0.9F);
    nesterov.set_every_rounds(1);
    return order;
  }

  std::string RunPath(const std::string& name) const {
    return folder_.path() + "/" + run_.run + "/" + name;
  }

  TemporaryFolder folder_;
  SmallRun run_;
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
};

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

class LostShardTest : public ShardHostTest {
 protected:
  // The run's newest version is 3.
  v1::RunOpened OpenAt(std::optional<uint32_t> hollow) {
    v1::OpenRun open = run_.Open();
    open.set_version(3);
    if (hollow) open.set_hollow(*hollow);
    const auto opened = host_->OpenRun(open);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *opened : v1::RunOpened();
  }
  static v1::Apply Seed(v1::Apply apply) {
    apply.set_seed(true);
    return apply;
  }
  absl::Status StageSeed(const Place& place, const std::vector<float>& values) {
    v1::ContributionHeader header = Header(run_, place, 0, 15, kChunkValues);
    header.set_seed(true);
    auto staging = host_->Stage(header);
    if (!staging.ok()) return staging.status();
    if (auto put = PutChunks(*staging, values, staging->grant.chunks); !put.ok()) return put;
    return host_->Finish(*staging);
  }
};

TEST_F(LostShardTest, IsNotOpenedAtVersionZero) {
  const v1::RunOpened opened = OpenAt(std::nullopt);
  EXPECT_TRUE(opened.hollow());
  EXPECT_EQ(opened.version(), 0u);
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run"));
  EXPECT_THAT(host_->States(), IsEmpty());
  EXPECT_TRUE(absl::IsUnavailable(Pull(3, 0, 15).status()));
  EXPECT_TRUE(absl::IsUnavailable(Stage({.round = 4}, Values(1, 15))));
}

TEST_F(LostShardTest, SeedRestoresTheBits) {
  const std::vector<float> values = Values(1, 15);
  EXPECT_TRUE(OpenAt(2).hollow());
  const v1::Apply apply = Seed(MakeApply(run_, 3, {{.group = 1, .samples = 1}}));
  EXPECT_THAT(Apply(apply).missing(), ElementsAre(1u));
  EXPECT_TRUE(absl::IsUnavailable(Pull(3, 0, 15).status()));
  ASSERT_TRUE(StageSeed({.round = 3, .group = 1, .samples = 1}, values).ok());
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "stage-3-1-1-0-seed"));
  // The state of a restart in between is that before.
  Restart();
  EXPECT_EQ(OpenAt(std::nullopt).version(), 2u);
  EXPECT_TRUE(OpenAt(2).hollow());
  const v1::Applied applied = Apply(apply);
  EXPECT_EQ(applied.error(), "");
  EXPECT_EQ(applied.digest(), Digest(values, 0));
  EXPECT_TRUE(std::isnan(applied.displacement()));
  EXPECT_TRUE(SameBits(PullAll(3), values));
  EXPECT_FALSE(OpenAt(std::nullopt).hollow());

  Restart();
  const v1::RunOpened opened = OpenAt(std::nullopt);
  EXPECT_FALSE(opened.hollow());
  EXPECT_EQ(opened.version(), 3u);
  EXPECT_EQ(opened.digest(), Digest(values, 0));
  EXPECT_EQ(Apply(MakeApply(run_, 3, {{.group = 0}})).digest(), Digest(values, 0))
      << "an order that was executed before the loss";
  ASSERT_TRUE(Stage({.round = 4}, Values(2, 15)).ok());
  EXPECT_EQ(Apply(MakeApply(run_, 4, {{}})).error(), "");
}

TEST_F(LostShardTest, ContributionsRestoreTheClosingRound) {
  const std::vector<float> values = Values(1, 15);
  EXPECT_EQ(OpenAt(3).version(), 3u);
  const v1::Apply apply = MakeApply(run_, 4, {{.group = 0}, {.group = 1}});
  EXPECT_THAT(Apply(apply).missing(), ElementsAre(0u, 1u));
  ASSERT_TRUE(Stage({.round = 4, .group = 0}, values).ok());
  EXPECT_THAT(Apply(apply).missing(), ElementsAre(1u));
  ASSERT_TRUE(Stage({.round = 4, .group = 1}, values).ok());
  const v1::Applied applied = Apply(apply);
  EXPECT_EQ(applied.digest(), Digest(values, 0));
  EXPECT_TRUE(std::isnan(applied.displacement()));
  EXPECT_EQ(host_->States()[0].version(), 4u);
}

TEST_F(LostShardTest, OuterUpdateRequiresASeed) {
  EXPECT_EQ(OpenAt(3).version(), 3u);
  ASSERT_TRUE(Stage({.round = 4}, Values(1, 15)).ok());
  EXPECT_THAT(Apply(WithMomentum(MakeApply(run_, 4, {{}}))).error(),
              HasSubstr("requires the values of version 3"));
  EXPECT_TRUE(OpenAt(2).hollow());
  Apply(Seed(MakeApply(run_, 3, {{.samples = 1}})));
  ASSERT_TRUE(StageSeed({.round = 3, .samples = 1}, Values(2, 15)).ok());
  EXPECT_EQ(Apply(Seed(MakeApply(run_, 3, {{.samples = 1}}))).error(), "");
  ASSERT_TRUE(Stage({.round = 4}, Values(1, 15)).ok());
  const v1::Applied applied = Apply(WithMomentum(MakeApply(run_, 4, {{}})));
  EXPECT_EQ(applied.error(), "");
  EXPECT_EQ(applied.outer().momentum_squared(), 0);
}

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

TEST_F(LostShardTest, UnusableVersionIsDiscarded) {
  Open();
  for (uint32_t round = 1; round <= 2; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    Apply(MakeApply(run_, round, {{}}));
  }
  ASSERT_TRUE(Stage({.round = 3}, Values(3, 15)).ok());
  const std::string newest = ReadAll(RunPath("version-2"));
  EXPECT_EQ(OpenAt(std::nullopt).version(), 2u) << "older than the run";
  EXPECT_TRUE(OpenAt(2).hollow());
  EXPECT_THAT(Files(RunPath("")), ElementsAre("run", "version.damaged"));
  EXPECT_EQ(ReadAll(RunPath("version.damaged")), newest);
  Restart();
  EXPECT_TRUE(OpenAt(std::nullopt).hollow());
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

// --- Ended runs

class EndedRunsTest : public ShardHostTest {
 protected:
  // A run whose newest version is `version`, 0 or 1.
  void EndRun(const std::string& run, uint32_t version = 0) {
    run_.run = run;
    Open();
    if (version == 1) {
      ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
      EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
    }
    ASSERT_TRUE(host_->CloseRun(run).ok());
  }
  // Makes the run the one that ended `seconds` ago.
  void SetAge(const std::string& folder, int seconds) {
    fs::last_write_time(folder_.path() + "/" + folder + "/run",
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  void RestartKeeping(size_t runs) { StartOn(folder_.path(), runs); }
};

TEST_F(EndedRunsTest, OldestAreRemovedWhenARunEnds) {
  RestartKeeping(2);
  run_.run = "active";
  Open();
  EndRun("c");
  EndRun("a");
  SetAge("c", 20);
  SetAge("a", 10);
  // A repeated order does not make the run a newer one.
  ASSERT_TRUE(host_->CloseRun("c").ok());
  EndRun("b", 1);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "a", "active", "b"));
  ASSERT_EQ(host_->States().size(), 3u);
  // The removed run can be opened anew.
  run_.run = "c";
  EXPECT_EQ(Open().version(), 0u);
  EXPECT_EQ(Open().error(), "");
}

TEST_F(EndedRunsTest, OldestAreRemovedAtTheStart) {
  EndRun("a");
  EndRun("b");
  EndRun("c");
  run_.run = "d";
  Open();
  run_.lineage = "lineage-b";
  Open();
  const std::string archived = ".old-d-lineage-a";
  SetAge("a", 40);
  SetAge("b", 30);
  SetAge(archived, 20);
  SetAge("c", 10);
  SetAge("d", 50);
  RestartKeeping(3);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", archived, "b", "c", "d"));
  RestartKeeping(1);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "c", "d"));
  RestartKeeping(0);
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "d"));
  EXPECT_EQ(host_->States().size(), 1u) << "the run that has not ended";
}

// --- Deleted runs

TEST_F(EndedRunsTest, DeletedRunIsRemoved) {
  EndRun("a", 1);
  EndRun("b");
  run_.run = "live";
  Open();
  v1::DeleteRun order;
  order.set_lineage(run_.lineage);
  for (const char* run : {"a", "live", "a", "unknown"}) {
    order.set_run(run);
    EXPECT_EQ(host_->DeleteRun(order), absl::OkStatus()) << run;
  }
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "b"));
  ASSERT_EQ(host_->States().size(), 1u);
  EXPECT_EQ(host_->States()[0].run(), "b");
  EXPECT_TRUE(host_->States()[0].closed());
  EXPECT_EQ(host_->CheckFiles(), absl::OkStatus());
  // The process that begins next agrees.
  Restart();
  EXPECT_EQ(host_->States().size(), 1u);
}

TEST_F(EndedRunsTest, DeletionKeepsOtherLineages) {
  run_.run = "a";
  Open();
  run_.lineage = "lineage-b";
  Open();
  v1::DeleteRun order;
  order.set_run("a");
  order.set_lineage("lineage-c");
  EXPECT_EQ(host_->DeleteRun(order), absl::OkStatus());
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", ".old-a-lineage-a", "a"));
  // It was set aside when the id was reused.
  order.set_lineage("lineage-a");
  EXPECT_EQ(host_->DeleteRun(order), absl::OkStatus());
  EXPECT_THAT(Files(folder_.path()), ElementsAre(".identity", ".lock", "a"));
}

TEST_F(EndedRunsTest, DeletionTakesNamesOnly) {
  EndRun("a");
  v1::DeleteRun order;
  order.set_run("../a");
  order.set_lineage(run_.lineage);
  EXPECT_THAT(host_->DeleteRun(order), IsError(absl::StatusCode::kInvalidArgument, "run id"));
}

// --- Space

// A rank may stage nothing; its contribution has no chunks.
TEST_F(ShardHostTest, EmptyContributionNeedsNoSpace) {
  Open();
  const int64_t reserved = host_->ReservedBytes();
  auto staging = host_->Stage(Header(run_, {}, 0, 0, kChunkValues));
  ASSERT_TRUE(staging.ok()) << staging.status();
  EXPECT_EQ(staging->grant.chunks, 0u);
  EXPECT_EQ(host_->ReservedBytes(), reserved);
}

// 15 parameters: two kept versions, a new one, and the contributions of two groups.
TEST_F(ShardHostTest, RunWithoutSpaceIsRefused) {
  constexpr int64_t kNeeded = 15 * 4 * 5;
  int64_t free = kNeeded - 1;
  host_->LimitSpace([&] { return free; });
  EXPECT_THAT(Open().error(), HasSubstr("needs 300 bytes, 299 are free"));
  EXPECT_TRUE(host_->States().empty());
  EXPECT_EQ(host_->ReservedBytes(), 0);
  free = kNeeded;
  EXPECT_EQ(Open().error(), "");
  EXPECT_EQ(host_->ReservedBytes(), kNeeded - 60) << "version 0 is stored";
  // What is reserved for one run is not free for another.
  free = 2 * kNeeded - 61;
  run_.run = "run-2";
  EXPECT_THAT(Open().error(), HasSubstr("240 of these are reserved"));
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

// The units of this model would take 6 GB.
TEST_F(ShardHostTest, SpaceIsCheckedBeforeUnitsAreMade) {
  host_->LimitSpace([] { return int64_t{1} << 30; });
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

TEST_F(EndedRunsTest, DamageIsFoundByThePull) {
  EndRun("run-1", 1);
  std::string bytes = ReadAll(RunPath("version-1"));
  bytes[bytes.size() - 3] ^= 1;
  WriteAll(RunPath("version-1"), bytes);
  Restart();
  EXPECT_EQ(host_->States()[0].version(), 1u) << "not checked at the start";
  EXPECT_THAT(Pull(1, 0, 15), IsError(absl::StatusCode::kDataLoss, "version-1"));
}

// --- Files after every step

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

// Files whose meta ends before the discrepancy, or before the order.
TEST_F(ShardHostTest, VersionsOfOlderBuildsAreReadable) {
  Open();
  for (uint32_t g = 0; g < 2; ++g) ASSERT_TRUE(Stage({.group = g}, Values(1 + g, 15)).ok());
  const uint64_t digest = Apply(MakeApply(run_, 1, {{.group = 0}, {.group = 1}})).digest();
  const std::vector<float> mean = PullAll(1);
  for (const size_t meta_bytes : {48, 32}) {
    {
      const auto file = BlockFile::Open(PosixFileSystem(), RunPath("version-1"), Access::kRead);
      ASSERT_TRUE(file.ok()) << file.status();
      BlockFileHead head = (*file)->head();
      std::string values(head.data_bytes, 0);
      ASSERT_TRUE((*file)->ReadBlock(0, values).ok());
      ASSERT_GT(head.meta.size(), meta_bytes);
      head.meta.resize(meta_bytes);
      const auto old = BlockFile::Create(PosixFileSystem(), RunPath("old"), head);
      ASSERT_TRUE((*old)->WriteBlock(0, values, Crc32c(values)).ok());
    }
    fs::rename(RunPath("old"), RunPath("version-1"));
    Restart();
    ASSERT_EQ(host_->States()[0].version(), 1u) << meta_bytes;
    EXPECT_EQ(host_->States()[0].step(), 0u);
    EXPECT_TRUE(SameBits(PullAll(1), mean));
    const v1::Applied again = Apply(MakeApply(run_, 1, {{.group = 1}}));
    EXPECT_EQ(again.error(), "");
    EXPECT_EQ(again.digest(), digest);
    EXPECT_EQ(std::isnan(again.displacement()), meta_bytes == 32);
  }
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

// --- The full disk

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
