// Ranks that miss rounds, or contribute too late: what they pull, and what becomes of their
// changes. Each group has one rank; the shard has a real gRPC server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "member/shard_exchange.h"
#include "member/thread_runtime.h"
#include "model/coding.h"
#include "tests/member/recording_control.h"
#include "tests/server/rounds_server.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

class OneShard final : public RecordingControl {
 public:
  explicit OneShard(std::string shard) : shard_(std::move(shard)) {}
  ShardLocation LocationOf(uint32_t) const override { return shard_; }

 private:
  const std::string shard_;
};

// The only rank of a group.
struct OnlyRank {
  OnlyRank(const v1::OpenRun& open, uint32_t group, const std::string& shard)
      : index(*ParameterIndex::FromModel(open.spec().model())),
        units(index),
        control(shard),
        values(index.size()),
        owned{{{0, index.size()}, values}} {
    assignment.mutable_place()->set_run(open.run());
    assignment.mutable_place()->set_group(group);
    assignment.mutable_place()->set_generation(1);
    assignment.set_lineage(open.lineage());
    *assignment.mutable_spec() = open.spec();
    assignment.add_shards();
    const bool exchanges_units = ExchangesUnits(open.spec().averaging());
    exchange.emplace(ThreadRuntime::Insecure(), assignment, index, owned, control, cancellation,
                     progress, ShardExchange::Options{.units = exchanges_units ? &units : nullptr});
  }

  absl::Status Stage(uint32_t round, uint32_t fragment = 0) {
    Traffic ignored;
    exchange->BeginStage(round, /*samples=*/100, fragment);
    return exchange->Finish(&ignored);
  }
  // Pulls and adopts. Returns how many rounds late a dropped change is.
  uint32_t Adopt(uint32_t version, bool included) {
    traffic = Traffic();
    exchange->BeginPull(version, included);
    EXPECT_EQ(exchange->Finish(&traffic), absl::OkStatus());
    return exchange->Adopt();
  }

  v1::Assignment assignment;
  const ParameterIndex index;
  const ExchangeUnits units;
  OneShard control;
  Cancellation cancellation;
  TrainerProgress progress;
  std::vector<float> values;
  const std::vector<Owned> owned;
  // Traffic of the last pull.
  Traffic traffic;
  std::optional<ShardExchange> exchange;
};

class MissedRoundsTest : public ::testing::Test {
 protected:
  MissedRoundsTest() : server_(folder_.path()) {
    run_.in = 100;
    run_.out = 50;
    run_.ranks = 1;
    open_ = run_.Open();
    open_.mutable_spec()->mutable_averaging()->set_every_steps(4);
  }

  v1::Averaging& averaging() { return *open_.mutable_spec()->mutable_averaging(); }
  void Code() {
    averaging().mutable_up()->set_codec(v1::CODEC_E3M0);
    averaging().mutable_down()->set_codec(v1::CODEC_E3M0);
  }
  void Start() {
    ASSERT_EQ(server_.host().OpenRun(open_).value_or(v1::RunOpened()).error(), "");
    for (uint32_t group = 0; group < 2; ++group) {
      members_.push_back(std::make_unique<OnlyRank>(open_, group, server_.address()));
      const std::vector<float> initial = Version(0);
      std::copy(initial.begin(), initial.end(), members_.back()->values.begin());
      members_.back()->exchange->AdoptInitial();
    }
  }
  std::vector<float> Version(uint32_t version) {
    std::vector<float> values(run_.parameters());
    Traffic traffic;
    EXPECT_EQ(server_.Client()->Pull(PullOf(run_, version, 0, run_.parameters()), values, &traffic),
              absl::OkStatus());
    return values;
  }
  void Apply(uint32_t round, std::vector<Part> parts, uint32_t fragment = 0) {
    v1::Apply order = MakeApply(run_, round, parts);
    if (const auto up = CodingOf(averaging().up())) *order.mutable_up() = *up;
    if (const auto down = CodingOf(averaging().down())) *order.mutable_down() = *down;
    order.set_fragment(fragment);
    const auto applied = server_.host().Apply(order);
    ASSERT_TRUE(applied.ok()) << applied.status();
    ASSERT_EQ(applied->error(), "");
    ASSERT_EQ(applied->missing_size(), 0);
  }
  // Group 1 makes these versions alone.
  void MakeVersions(uint32_t first, uint32_t last) {
    for (uint32_t round = first; round <= last; ++round) {
      Learn(*members_[1], round);
      ASSERT_EQ(members_[1]->Stage(round), absl::OkStatus());
      Apply(round, {{.group = 1}});
      ASSERT_EQ(members_[1]->Adopt(round, /*included=*/true), 0U);
    }
  }
  void Learn(OnlyRank& member, uint64_t salt) {
    const std::vector<float> change = Values(salt, run_.parameters());
    for (size_t i = 0; i < change.size(); ++i) member.values[i] += 0.01F * change[i];
  }
  uint64_t VersionBytes() const { return run_.parameters() * sizeof(float); }

  SmallRun run_;
  v1::OpenRun open_;
  const TemporaryFolder folder_;
  RoundsServer server_;
  std::vector<std::unique_ptr<OnlyRank>> members_;
};

// What a program's status shows of the memory of its exchange is what the exchange allocates.
TEST_F(MissedRoundsTest, ExpectedMemoryOfValues) {
  // The values are sent from where they are.
  Start();
  MakeVersions(1, 2);
  const ShardExchange& exchange = *members_[1]->exchange;
  EXPECT_EQ(exchange.ExpectedBytes(), static_cast<int64_t>(VersionBytes()));
  EXPECT_EQ(exchange.AllocatedBytes(), exchange.ExpectedBytes());
}

TEST_F(MissedRoundsTest, ExpectedMemoryOfCodes) {
  Code();
  Start();
  MakeVersions(1, 3);
  const ShardExchange& exchange = *members_[1]->exchange;
  // The version, what is carried, and the frame.
  EXPECT_GT(exchange.ExpectedBytes(), static_cast<int64_t>(2 * VersionBytes()));
  EXPECT_LT(exchange.ExpectedBytes(), static_cast<int64_t>(3 * VersionBytes()));
  EXPECT_EQ(exchange.AllocatedBytes(), exchange.ExpectedBytes());
}

TEST_F(MissedRoundsTest, ExpectedMemoryOfOverlapAndStaleness) {
  averaging().mutable_overlap()->set_steps(1);
  averaging().mutable_staleness()->set_max_rounds(3);
  Start();
  MakeVersions(1, 2);
  const ShardExchange& exchange = *members_[1]->exchange;
  // The version, what is staged, carried and contributed.
  EXPECT_EQ(exchange.ExpectedBytes(), static_cast<int64_t>(4 * VersionBytes()));
  EXPECT_EQ(exchange.AllocatedBytes(), exchange.ExpectedBytes());
}

TEST_F(MissedRoundsTest, VersionsArePulledAsFrames) {
  Code();
  Start();
  MakeVersions(1, 4);
  OnlyRank& member = *members_[0];
  member.Adopt(4, /*included=*/false);
  EXPECT_TRUE(SameBits(member.values, Version(4)));
  EXPECT_LT(member.traffic.payload_received, VersionBytes() * 6 / 10) << "four frames";
  EXPECT_GT(member.traffic.payload_received, VersionBytes() * 4 / 10);
  MakeVersions(5, 5);
  member.Adopt(5, /*included=*/false);
  EXPECT_TRUE(SameBits(member.values, Version(5)));
  EXPECT_LT(member.traffic.payload_received, VersionBytes() * 15 / 100) << "one frame";
}

// The shard keeps seven frames, which are shorter than a version.
TEST_F(MissedRoundsTest, ShorterVersionIsPulledAsAWhole) {
  Code();
  Start();
  MakeVersions(1, 9);
  OnlyRank& member = *members_[0];
  member.Adopt(9, /*included=*/false);
  EXPECT_TRUE(SameBits(member.values, Version(9)));
  EXPECT_EQ(member.traffic.payload_received, VersionBytes());
}

// A rank without any version pulls one; the codes of the versions do not matter.
TEST_F(MissedRoundsTest, RankWithoutAVersionPullsOne) {
  Code();
  Start();
  MakeVersions(1, 2);
  OnlyRank member(open_, 0, server_.address());
  member.Adopt(2, /*included=*/false);
  EXPECT_TRUE(SameBits(member.values, Version(2)));
  EXPECT_EQ(member.traffic.payload_received, VersionBytes());
}

TEST_F(MissedRoundsTest, LateChangesAreLostByDefault) {
  Start();
  OnlyRank& late = *members_[0];
  Learn(late, 77);
  ASSERT_EQ(late.Stage(1), absl::OkStatus());
  MakeVersions(1, 1);
  EXPECT_EQ(late.Adopt(1, /*included=*/false), 0U);
  ASSERT_EQ(late.Stage(2), absl::OkStatus());
  Apply(2, {{.group = 0}});
  EXPECT_TRUE(SameBits(Version(2), Version(1)));
}

TEST_F(MissedRoundsTest, LateChangeIsAddedToTheNextContribution) {
  averaging().mutable_staleness()->set_max_rounds(2);
  Start();
  const std::vector<float> initial = Version(0);
  OnlyRank& late = *members_[0];
  Learn(late, 77);
  const std::vector<float> contribution = late.values;
  ASSERT_EQ(late.Stage(1), absl::OkStatus());
  MakeVersions(1, 2);
  // The change would have belonged to round 1, and is added to round 3.
  EXPECT_EQ(late.Adopt(2, /*included=*/false), 0U);
  const std::vector<float> version = Version(2);
  EXPECT_TRUE(SameBits(late.values, version));
  ASSERT_EQ(late.Stage(3), absl::OkStatus());
  Apply(3, {{.group = 0}});
  std::vector<float> expected = version;
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] += 0.25F * (contribution[i] - initial[i]);
  }
  EXPECT_TRUE(SameBits(Version(3), expected));
  // It is added once.
  EXPECT_EQ(late.Adopt(3, /*included=*/true), 0U);
  ASSERT_EQ(late.Stage(4), absl::OkStatus());
  Apply(4, {{.group = 0}});
  EXPECT_TRUE(SameBits(Version(4), expected));
}

TEST_F(MissedRoundsTest, ChangeThatIsTooLateIsDropped) {
  averaging().mutable_staleness()->set_max_rounds(1);
  Start();
  OnlyRank& late = *members_[0];
  Learn(late, 77);
  ASSERT_EQ(late.Stage(1), absl::OkStatus());
  MakeVersions(1, 2);
  EXPECT_EQ(late.Adopt(2, /*included=*/false), 2U) << "rounds late";
  ASSERT_EQ(late.Stage(3), absl::OkStatus());
  Apply(3, {{.group = 0}});
  EXPECT_TRUE(SameBits(Version(3), Version(2)));
}

// With codes, the rest of the change is carried like what a frame leaves out.
TEST_F(MissedRoundsTest, LateCodedChangeArrives) {
  Code();
  averaging().mutable_down()->set_codec(v1::CODEC_BF16);
  Start();
  const std::vector<float> initial = Version(0);
  OnlyRank& late = *members_[0];
  Learn(late, 77);
  const std::vector<float> contribution = late.values;
  ASSERT_EQ(late.Stage(1), absl::OkStatus());
  MakeVersions(1, 1);
  late.Adopt(1, /*included=*/false);
  const std::vector<float> version = Version(1);
  for (uint32_t round = 2; round <= 9; ++round) {
    ASSERT_EQ(late.Stage(round), absl::OkStatus());
    Apply(round, {{.group = 0}});
    late.Adopt(round, /*included=*/true);
  }
  for (size_t i = 0; i < version.size(); ++i) {
    EXPECT_NEAR(late.values[i] - version[i], contribution[i] - initial[i], 2e-4) << i;
  }
}

// Rounds 1 and 2 exchange one fragment each; what the group has learned of the other one stays.
TEST_F(MissedRoundsTest, OtherFragmentsAreMerged) {
  Code();
  averaging().mutable_up()->clear_codec();
  averaging().mutable_down()->clear_codec();
  averaging().mutable_fragments()->set_count(2);
  Start();
  const std::vector<float> initial = Version(0);
  OnlyRank& member = *members_[0];
  Learn(member, 5);
  const std::vector<float> learned = member.values;
  ASSERT_EQ(member.Stage(1, /*fragment=*/1), absl::OkStatus());
  Apply(1, {{.group = 0}}, /*fragment=*/1);
  ASSERT_EQ(member.Adopt(1, /*included=*/true), 0U);
  EXPECT_EQ(member.traffic.payload_received, VersionBytes() - 904 * sizeof(float));
  const std::vector<float> version = Version(1);
  EXPECT_TRUE(SameBits(member.values, version)) << "to be checked, saved and evaluated";
  EXPECT_EQ(version[0], learned[0]);
  EXPECT_EQ(version[kUnitSize], initial[kUnitSize]);
  member.exchange->Merge();
  EXPECT_TRUE(SameBits(member.values, learned));
  ASSERT_EQ(member.Stage(2, /*fragment=*/2), absl::OkStatus());
  Apply(2, {{.group = 0}}, /*fragment=*/2);
  ASSERT_EQ(member.Adopt(2, /*included=*/true), 0U);
  EXPECT_TRUE(SameBits(member.values, learned)) << "both fragments";
}

// Round 1 exchanges fragment 1, and round 2 the other one. If the generation ends in round 2, the
// next one weights the late change of round 1 by how late it is by then.
TEST_F(MissedRoundsTest, LateChangeIsKeptInRoundsOfOtherFragments) {
  averaging().mutable_staleness()->set_max_rounds(2);
  averaging().mutable_fragments()->set_count(2);
  Start();
  const std::vector<float> initial = Version(0);
  OnlyRank& late = *members_[0];
  Learn(late, 77);
  const std::vector<float> first = late.values;
  ASSERT_EQ(late.Stage(1, /*fragment=*/1), absl::OkStatus());
  OnlyRank& other = *members_[1];
  ASSERT_EQ(other.Stage(1, /*fragment=*/1), absl::OkStatus());
  Apply(1, {{.group = 1}}, /*fragment=*/1);
  ASSERT_EQ(late.Adopt(1, /*included=*/false), 0U);
  late.exchange->Merge();
  ASSERT_EQ(late.Stage(2, /*fragment=*/2), absl::OkStatus());

  const int64_t end = run_.parameters();
  EXPECT_THAT(late.exchange->Changes(), ::testing::ElementsAre(UpdateCount{{0, kUnitSize}, 1},
                                                               UpdateCount{{kUnitSize, 5000}, 2},
                                                               UpdateCount{{5000, end}, 1}));
  std::vector<float> kept(end);
  ASSERT_EQ(late.exchange->WhatMayBeKept(kept, {}), absl::OkStatus());
  for (int64_t i = 0; i < end; ++i) EXPECT_EQ(kept[i], first[i] - initial[i]) << i;
}

}  // namespace
}  // namespace cadre::testing
