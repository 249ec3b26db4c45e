// Rounds whose contributions and versions are frames of differences, on a shard host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/digest.h"
#include "model/coding.h"
#include "server/client/frame.h"
#include "server/mean.h"
#include "server/outer_update.h"
#include "server/run_terms.h"
#include "server/shard_host.h"
#include "tests/base/expect.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CodedRoundsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A weight of two units, and a bias.
    run_.in = 100;
    run_.out = 50;
    run_.ranks = 1;
    open_ = run_.Open();
    v1::Averaging& averaging = *open_.mutable_spec()->mutable_averaging();
    averaging.mutable_up()->set_codec(v1::CODEC_STAT2);
    averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
    units_ = std::make_unique<ExchangeUnits>(*ParameterIndex::FromModel(open_.spec().model()));
    Restart();
    ASSERT_TRUE(host_->OpenRun(open_).ok());
  }
  void Restart() {
    host_.reset();
    auto host = ShardHost::Open(folder_.path(), "agg-0", &counters_);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    for (uint32_t group = 0; group < 2; ++group) {
      host_->Fence(FenceOf(run_.run, group, run_.generation));
    }
  }

  const v1::Averaging& averaging() const { return open_.spec().averaging(); }
  int64_t size() const { return run_.parameters(); }
  std::string FrameOf(const std::vector<float>& change, int64_t begin = 0) const {
    std::string frame;
    EXPECT_TRUE(EncodeFrame(units_->In({begin, begin + std::ssize(change)}),
                            CodecOf(*CodingOf(averaging().up())), change, &frame)
                    .ok());
    return frame;
  }
  v1::ContributionHeader FrameHeader(const Place& place, const std::string& frame,
                                     Interval positions) const {
    v1::ContributionHeader header = Header(run_, place, positions.begin, positions.end, 1 << 10);
    header.set_codec(averaging().up().codec());
    header.set_frame_elements(frame.size() / sizeof(float));
    return header;
  }
  absl::Status Stage(const Place& place, const std::string& frame) {
    return StageAs(FrameHeader(place, frame, {0, size()}), frame);
  }
  absl::Status StageAs(const v1::ContributionHeader& header, const std::string& frame) {
    auto staging = host_->Stage(header);
    if (!staging.ok()) return staging.status();
    std::vector<float> elements(frame.size() / sizeof(float));
    std::memcpy(elements.data(), frame.data(), elements.size() * sizeof(float));
    for (uint32_t i = staging->grant.next_chunk; i < staging->grant.chunks; ++i) {
      const size_t begin = size_t{i} << 10;
      const auto put = host_->Put(
          *staging, MakeChunk(i, std::span(elements).subspan(
                                     begin, std::min<size_t>(1 << 10, elements.size() - begin))));
      if (!put.ok()) return put.status();
    }
    return host_->Finish(*staging);
  }
  v1::Apply Order(uint32_t round, const std::vector<Part>& parts) const {
    v1::Apply order = MakeApply(run_, round, parts);
    *order.mutable_up() = *CodingOf(averaging().up());
    *order.mutable_down() = *CodingOf(averaging().down());
    v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
    nesterov.set_learning_rate(0.7F);
    nesterov.set_momentum(0.9F);
    nesterov.set_every_rounds(1);
    return order;
  }
  absl::StatusOr<std::vector<float>> Pull(uint32_t version, Interval positions,
                                          std::optional<uint64_t> frame_from = {}) {
    v1::PullRequest request = PullOf(run_, version, positions.begin, positions.end);
    if (frame_from) request.set_frame_from(*frame_from);
    auto pull = host_->Pull(request);
    if (!pull.ok()) return pull.status();
    std::vector<float> elements((*pull)->left());
    const auto read =
        (*pull)->Next({reinterpret_cast<char*>(elements.data()), elements.size() * sizeof(float)});
    if (!read.ok()) return read.status();
    return elements;
  }
  // What a group makes of a version and the frame of the next.
  std::vector<float> Follow(const std::vector<float>& before, uint32_t version,
                            Interval positions) {
    const auto elements = Pull(version, positions, 0);
    EXPECT_TRUE(elements.ok()) << elements.status();
    std::vector<float> difference;
    const absl::string_view frame(reinterpret_cast<const char*>(elements->data()),
                                  elements->size() * sizeof(float));
    EXPECT_TRUE(DecodeFrame(units_->In(positions), CodecOf(*CodingOf(averaging().down())), frame,
                            &difference)
                    .ok());
    AddWeighted(1, std::span(before).subspan(positions.begin, positions.size()), difference);
    return difference;
  }

  SmallRun run_;
  v1::OpenRun open_;
  std::unique_ptr<ExchangeUnits> units_;
  TemporaryFolder folder_;
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
};

// The model that the shard makes is that of the formulas, computed here for the whole model at
// once.
TEST_F(CodedRoundsTest, VersionsFollowTheFormulas) {
  std::vector<float> version = *Pull(0, {0, size()});
  std::vector<float> residual(size());
  std::vector<float> momentum(size());
  const Codec up = CodecOf(*CodingOf(averaging().up()));
  const Codec down = CodecOf(*CodingOf(averaging().down()));
  for (uint32_t round = 1; round <= 3; ++round) {
    std::vector<float> exact = version;
    AddWeighted(1, residual, exact);
    std::vector<float> mean(size());
    const std::vector<float> weights = MeanWeights(std::vector<uint64_t>{100, 300});
    for (uint32_t group = 0; group < 2; ++group) {
      std::vector<float> change = Values(10 * round + group, size());
      const std::string frame = FrameOf(change);
      const Place place{.round = round, .group = group, .samples = group == 0 ? 100U : 300U};
      ASSERT_EQ(Stage(place, frame), absl::OkStatus());
      ASSERT_TRUE(DecodeFrame(units_->all(), up, frame, &change).ok());
      (group == 0 ? SetWeighted : AddWeighted)(weights[group], change, mean);
    }
    AddWeighted(1, exact, mean);
    const v1::Apply order =
        Order(round, {{.group = 0, .samples = 100}, {.group = 1, .samples = 300}});
    OuterUpdate(order.outer(), round).Update(exact, mean, {momentum});
    std::vector<float> difference(size());
    for (int64_t i = 0; i < size(); ++i) difference[i] = mean[i] - version[i];
    std::string frame;
    ASSERT_TRUE(EncodeFrame(units_->all(), down, difference, &frame).ok());
    ASSERT_TRUE(DecodeFrame(units_->all(), down, frame, &difference).ok());
    const std::vector<float> before = version;
    AddWeighted(1, difference, version);
    for (int64_t i = 0; i < size(); ++i) residual[i] = mean[i] - version[i];

    const auto applied = host_->Apply(order);
    ASSERT_TRUE(applied.ok()) << applied.status();
    EXPECT_EQ(applied->error(), "");
    EXPECT_EQ(applied->digest(), Digest(version, 0)) << "round " << round;
    EXPECT_GT(applied->variance_between_groups(), 0);
    EXPECT_TRUE(SameBits(*Pull(round, {0, size()}), version));
    EXPECT_TRUE(SameBits(Follow(before, round, {0, size()}), version));
    const Interval second = {kUnitSize, size()};
    EXPECT_TRUE(SameBits(Follow(before, round, second), std::span(version).subspan(kUnitSize)));
    Restart();
    EXPECT_EQ(host_->Apply(order)->digest(), Digest(version, 0)) << "repeated";
  }
}

// Without error feedback on the shard, repeated rounds would not approach the groups' model.
TEST_F(CodedRoundsTest, ResidualIsCarried) {
  const std::vector<float> initial = *Pull(0, {0, size()});
  const std::vector<float> target = Values(1, size());
  std::vector<float> version = initial;
  const auto distance = [&] {
    double sum = 0;
    for (int64_t i = 0; i < size(); ++i) sum += std::abs(double{target[i]} - double{version[i]});
    return sum;
  };
  const double first = distance();
  for (uint32_t round = 1; round <= 12; ++round) {
    std::vector<float> change(size());
    for (int64_t i = 0; i < size(); ++i) change[i] = target[i] - version[i];
    ASSERT_EQ(Stage({.round = round}, FrameOf(change)), absl::OkStatus());
    v1::Apply order = Order(round, {{}});
    order.clear_outer();
    ASSERT_EQ(host_->Apply(order)->error(), "");
    version = *Pull(round, {0, size()});
  }
  EXPECT_LT(distance(), 0.05 * first);
}

TEST_F(CodedRoundsTest, FramesAreCheckedBeforeTheyAreAcknowledged) {
  const std::string frame = FrameOf(Values(1, size()));
  std::string bad = frame;
  // The first level of the first block is infinite.
  bad[0] = static_cast<char>(0x80);
  bad[1] = 0x7f;
  EXPECT_THAT(Stage({}, bad), IsError(absl::StatusCode::kInvalidArgument, "not finite"));
  EXPECT_EQ(counters_.Get("refused_malformed"), 1U);
  EXPECT_THAT(Files(folder_.path() + "/" + run_.run), Not(Contains(StartsWith("stage-"))));
  EXPECT_THAT(host_->Apply(Order(1, {{}}))->missing(), Contains(0U));
  EXPECT_EQ(Stage({}, frame), absl::OkStatus());
  EXPECT_EQ(host_->Apply(Order(1, {{}}))->error(), "");
}

TEST_F(CodedRoundsTest, HeadersAreChecked) {
  const std::string frame = FrameOf(Values(1, size()));
  const auto refusal = [&](const v1::ContributionHeader& header) {
    return std::string(host_->Stage(header).status().message());
  };
  v1::ContributionHeader header = FrameHeader({}, frame, {0, size()});
  header.set_codec(v1::CODEC_INT8);
  EXPECT_THAT(refusal(header), HasSubstr("the run has codec 5"));
  header = FrameHeader({}, frame, {0, size()});
  header.set_frame_elements(uint64_t{1} << 60);
  EXPECT_THAT(refusal(header), HasSubstr("has 1 to"));
  EXPECT_THAT(refusal(FrameHeader({}, frame, {0, 100})), HasSubstr("whole units"));
  EXPECT_THAT(refusal(FrameHeader({}, frame, {1, size()})), HasSubstr("whole units"));
  EXPECT_THAT(Pull(0, {0, size()}, 0), IsError(absl::StatusCode::kFailedPrecondition, "no frame"));
  ASSERT_EQ(Stage({}, frame), absl::OkStatus());
  ASSERT_EQ(host_->Apply(Order(1, {{}}))->error(), "");
  v1::Apply other = Order(2, {{}});
  other.mutable_down()->set_codec(v1::CODEC_INT8);
  EXPECT_THAT(host_->Apply(other)->error(), HasSubstr("another coding"));
  EXPECT_THAT(Pull(1, {0, 100}, 0), IsError(absl::StatusCode::kFailedPrecondition, "whole units"));
  const std::vector<float> whole = *Pull(1, {0, size()}, 0);
  const std::vector<float> rest = *Pull(1, {0, size()}, 7);
  EXPECT_TRUE(SameBits(rest, std::span(whole).subspan(7))) << "resumed";
}

// Two ranks that stage one unit each give the same version as one rank.
TEST_F(CodedRoundsTest, BitsDoNotDependOnTheRanks) {
  const std::vector<float> change = Values(1, size());
  ASSERT_EQ(Stage({}, FrameOf(change)), absl::OkStatus());
  const uint64_t digest = host_->Apply(Order(1, {{}}))->digest();

  run_.run = "run-2";
  run_.ranks = 2;
  v1::OpenRun open = run_.Open();
  *open.mutable_spec()->mutable_averaging() = averaging();
  ASSERT_TRUE(host_->OpenRun(open).ok());
  for (const uint32_t rank : {1U, 0U}) {
    const Interval part = units_->PartOf(rank, 2);
    const std::string frame =
        FrameOf({change.begin() + part.begin, change.begin() + part.end}, part.begin);
    ASSERT_EQ(StageAs(FrameHeader({.rank = rank}, frame, part), frame), absl::OkStatus());
  }
  EXPECT_EQ(host_->Apply(Order(1, {{.ranks = 2}}))->digest(), digest);
}

}  // namespace
}  // namespace cadre::testing
