// Shards that have lost their files, on a shard host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/digest.h"
#include "tests/base/expect.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

TEST_F(LostShardTest, ValuesWithAnotherDigestThanTheCommittedOneAreRefused) {
  const std::vector<float> values = Values(1, 15);
  EXPECT_TRUE(OpenAt(2).hollow());
  v1::Apply apply = Seed(MakeApply(run_, 3, {{.group = 0, .samples = 1}}));
  apply.set_digest(Digest(values, 0));
  EXPECT_THAT(Apply(apply).missing(), ElementsAre(0u));
  ASSERT_TRUE(StageSeed({.round = 3, .group = 0, .samples = 1}, Values(2, 15)).ok());
  EXPECT_EQ(Apply(apply).error(), absl::StrCat("the values of version 3 of run-1 have digest ",
                                               DigestHex(Digest(Values(2, 15), 0)), ", but ",
                                               DigestHex(Digest(values, 0)), " was committed"));
  EXPECT_TRUE(OpenAt(2).hollow()) << "nothing was written";
  // Another group has the values.
  apply.mutable_participants(0)->set_group(1);
  EXPECT_THAT(Apply(apply).missing(), ElementsAre(1u));
  ASSERT_TRUE(StageSeed({.round = 3, .group = 1, .samples = 1}, values).ok());
  EXPECT_EQ(Apply(apply).error(), "");
  EXPECT_TRUE(SameBits(PullAll(3), values));
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
  EXPECT_THAT(host_->Apply(WithMomentum(MakeApply(run_, 4, {{}}))),
              IsError(absl::StatusCode::kFailedPrecondition, "requires the values of version 3"));
  EXPECT_TRUE(OpenAt(2).hollow());
  Apply(Seed(MakeApply(run_, 3, {{.samples = 1}})));
  ASSERT_TRUE(StageSeed({.round = 3, .samples = 1}, Values(2, 15)).ok());
  EXPECT_EQ(Apply(Seed(MakeApply(run_, 3, {{.samples = 1}}))).error(), "");
  ASSERT_TRUE(Stage({.round = 4}, Values(1, 15)).ok());
  const v1::Applied applied = Apply(WithMomentum(MakeApply(run_, 4, {{}})));
  EXPECT_EQ(applied.error(), "");
  EXPECT_EQ(applied.outer().momentum_squared(), 0);
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

}  // namespace
}  // namespace cadre::testing
