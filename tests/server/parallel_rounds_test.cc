// Rounds of several stretches, computed by different numbers of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/coding.h"
#include "model/frame.h"
#include "server/run_terms.h"
#include "server/shard_host.h"
#include "tests/base/expect.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint32_t kChunk = 10'000;
constexpr uint32_t kGroups = 3;

struct Kind {
  const char* name;
  bool outer = false;
  bool coded = false;
};

// One aggregator with a model of six stretches, of which it stores the second of two shards, and
// groups of two ranks.
class ParallelRound {
 public:
  ParallelRound(const Kind& kind, int threads) : kind_(kind), threads_(threads) {
    run_.in = 1200;
    run_.out = 600;
    run_.groups = kGroups;
    run_.shard = 1;
    run_.shards = 2;
    open_ = run_.Open();
    if (kind.coded) {
      v1::Averaging& averaging = *open_.mutable_spec()->mutable_averaging();
      averaging.mutable_up()->set_codec(v1::CODEC_INT8);
      averaging.mutable_down()->set_codec(v1::CODEC_TOPK);
      averaging.mutable_down()->set_keep(1000);
    }
    const auto terms = RunTermsOf(open_);
    EXPECT_TRUE(terms.ok()) << terms.status();
    span_ = Ledger::SpanOf(*terms);
    units_ = terms->units;
    Restart();
    EXPECT_TRUE(host_->OpenRun(open_).ok());
  }

  ShardHost& host() { return *host_; }
  std::string Path(const std::string& name) const {
    return folder_.path() + "/" + run_.run + "/" + name;
  }

  void Restart() {
    host_.reset();
    auto host = ShardHost::Open(
        {.data_dir = folder_.path(), .name = "agg-0", .counters = &counters_, .threads = threads_});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    for (uint32_t group = 0; group < kGroups; ++group) {
      host_->Fence(FenceOf(run_.run, group, run_.generation));
    }
  }

  absl::Status Stage(uint32_t round, uint32_t group) {
    // The cut is inside a stretch and, unless there are units, inside a block.
    int64_t cut = span_.begin + span_.size() / 3 + 1;
    if (units_ != nullptr) cut = units_->BorderAfter(cut);
    CADRE_RETURN_IF_ERROR(StagePart(round, group, 0, {span_.begin, cut}));
    return StagePart(round, group, 1, {cut, span_.end});
  }
  v1::Apply Order(uint32_t round) const {
    std::vector<Part> parts;
    for (uint32_t group = 0; group < kGroups; ++group) {
      parts.push_back({.group = group, .ranks = 2, .samples = 100 + group});
    }
    v1::Apply order = MakeApply(run_, round, parts);
    if (kind_.coded) {
      *order.mutable_up() = *CodingOf(open_.spec().averaging().up());
      *order.mutable_down() = *CodingOf(open_.spec().averaging().down());
    }
    if (kind_.outer) {
      v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
      nesterov.set_learning_rate(0.7F);
      nesterov.set_momentum(0.9F);
      nesterov.set_every_rounds(2);
    }
    return order;
  }
  // The answer to the order, and the files of the version.
  std::vector<std::string> Apply(uint32_t round) {
    const auto applied = host_->Apply(Order(round));
    EXPECT_TRUE(applied.ok()) << applied.status();
    EXPECT_EQ(applied->error(), "");
    EXPECT_THAT(applied->missing(), IsEmpty());
    std::vector<std::string> bytes = {applied->SerializeAsString()};
    for (const std::string file : {"version-", "outer-", "frame-"}) {
      const std::string path = Path(file + std::to_string(round));
      bytes.push_back(std::filesystem::exists(path) ? ReadAll(path) : "");
    }
    return bytes;
  }

 private:
  absl::Status StagePart(uint32_t round, uint32_t group, uint32_t rank, Interval positions) {
    const Place place{.round = round, .group = group, .rank = rank, .samples = 100 + group};
    v1::ContributionHeader header = Header(run_, place, positions.begin, positions.end, kChunk);
    std::vector<float> elements = Values(100 * round + 10 * group + rank, positions.size());
    if (kind_.coded) {
      // Blocks of zeros are shorter than others.
      std::fill_n(elements.begin() + group * 5000, 20'000, 0.0F);
      const v1::Coding coding = *CodingOf(open_.spec().averaging().up());
      std::string frame;
      CADRE_RETURN_IF_ERROR(EncodeFrame(units_->In(positions), CodecOf(coding), elements, &frame));
      elements.resize(frame.size() / sizeof(float));
      std::memcpy(elements.data(), frame.data(), frame.size());
      header.set_codec(coding.codec());
      header.set_frame_elements(elements.size());
    }
    CADRE_ASSIGN_OR_RETURN(Staging staging, host_->Stage(header));
    for (uint32_t i = staging.grant.next_chunk; i < staging.grant.chunks; ++i) {
      const size_t begin = size_t{i} * kChunk;
      const size_t size = std::min<size_t>(kChunk, elements.size() - begin);
      CADRE_RETURN_IF_ERROR(
          host_->Put(staging, MakeChunk(i, std::span(elements).subspan(begin, size))).status());
    }
    return host_->Finish(staging);
  }

  const Kind kind_;
  const int threads_;
  SmallRun run_;
  v1::OpenRun open_;
  Interval span_;
  std::shared_ptr<const ExchangeUnits> units_;
  TemporaryFolder folder_;
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
};

class ParallelRoundsTest : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(
    , ParallelRoundsTest,
    ::testing::Values(Kind{.name = "Mean"}, Kind{.name = "Outer", .outer = true},
                      Kind{.name = "Coded", .coded = true},
                      Kind{.name = "CodedOuter", .outer = true, .coded = true}),
    [](const auto& info) { return std::string(info.param.name); });

// Files and answers of two rounds are equal to the last bit with any number of threads, and if the
// process that applies a round has not received the contributions itself.
TEST_P(ParallelRoundsTest, BitsDoNotDependOnThreads) {
  std::map<int, std::vector<std::string>> expected;
  for (const int threads : {1, 2, 5}) {
    ParallelRound round(GetParam(), threads);
    for (int number = 1; number <= 2; ++number) {
      for (uint32_t group = 0; group < kGroups; ++group) {
        ASSERT_EQ(round.Stage(number, group), absl::OkStatus());
      }
      if (threads == 2) round.Restart();
      const std::vector<std::string> bytes = round.Apply(number);
      EXPECT_EQ(expected.emplace(number, bytes).first->second, bytes) << threads << " threads";
      EXPECT_THAT(bytes[1], Not(IsEmpty()));
      EXPECT_EQ(bytes[2].empty(), !GetParam().outer && !GetParam().coded);
      EXPECT_EQ(bytes[3].empty(), !GetParam().coded);
    }
    // Every file is whole.
    round.Restart();
    ASSERT_EQ(round.host().States().size(), 1u);
    EXPECT_EQ(round.host().States()[0].version(), 2u);
  }
}

// Wherever a contribution is damaged after it has arrived, no version is made of it: its group is
// missing, and the round has the same bits once it is staged again.
TEST_P(ParallelRoundsTest, DamageIsFoundInTheSamePass) {
  ParallelRound round(GetParam(), 2);
  const auto stage_all = [&](ParallelRound& to) {
    for (uint32_t group = 0; group < kGroups; ++group) {
      ASSERT_EQ(to.Stage(1, group), absl::OkStatus());
    }
  };
  ParallelRound undamaged(GetParam(), 1);
  stage_all(undamaged);
  const std::vector<std::string> expected = undamaged.Apply(1);
  stage_all(round);
  for (const double where : {0.003, 0.3, 0.6, 0.99999}) {
    const std::string path = round.Path("stage-1-2-1-1");
    std::string bytes = ReadAll(path);
    bytes[static_cast<size_t>(where * static_cast<double>(bytes.size()))] ^= 0x10;
    WriteAll(path, bytes);
    EXPECT_THAT(round.host().Apply(round.Order(1)),
                IsError(absl::StatusCode::kDataLoss, "stage-1-2-1-1"))
        << where;
    EXPECT_EQ(round.host().States()[0].version(), 0u);
    for (const char* const file : {"version-1", "version-1.new", "outer-1", "frame-1"}) {
      EXPECT_THAT(Files(round.Path("")), Not(::testing::Contains(file)));
    }
    EXPECT_THAT(round.host().Apply(round.Order(1))->missing(), ElementsAre(2u));
    ASSERT_EQ(round.Stage(1, 2), absl::OkStatus());
  }
  EXPECT_EQ(round.Apply(1), expected);
}

// All contributions that are damaged are lost by one attempt.
TEST(ParallelRoundTest, EveryDamagedContributionIsFound) {
  ParallelRound round({.name = ""}, 2);
  for (uint32_t group = 0; group < kGroups; ++group) {
    ASSERT_EQ(round.Stage(1, group), absl::OkStatus());
  }
  for (const char* const name : {"stage-1-0-1-1", "stage-1-2-1-0"}) {
    const std::string bytes = ReadAll(round.Path(name));
    WriteAll(round.Path(name), bytes.substr(0, bytes.size() - 1));
  }
  EXPECT_THAT(round.host().Apply(round.Order(1)),
              IsError(absl::StatusCode::kDataLoss, "stage-1-0"));
  EXPECT_THAT(round.host().Apply(round.Order(1))->missing(), ElementsAre(0u, 2u));
}

// The previous version is damaged where an update needs it.
TEST_P(ParallelRoundsTest, DamagedVersionBefore) {
  ParallelRound round(GetParam(), 2);
  for (uint32_t group = 0; group < kGroups; ++group) {
    ASSERT_EQ(round.Stage(1, group), absl::OkStatus());
  }
  std::string bytes = ReadAll(round.Path("version-0"));
  bytes[bytes.size() / 2] ^= 0x40;
  WriteAll(round.Path("version-0"), bytes);
  const auto applied = round.host().Apply(round.Order(1));
  if (GetParam().outer || GetParam().coded) {
    EXPECT_THAT(applied, IsError(absl::StatusCode::kUnavailable, "version-0"));
    EXPECT_THAT(round.host().CheckFiles(), IsError(absl::StatusCode::kFailedPrecondition, ""));
  } else {
    ASSERT_TRUE(applied.ok()) << applied.status();
    EXPECT_TRUE(std::isnan(applied->variance_between_groups()));
    EXPECT_TRUE(std::isnan(applied->displacement()));
  }
}

}  // namespace
}  // namespace cadre::testing
