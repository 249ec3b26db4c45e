// Rounds whose contributions and versions are frames of differences, on a shard host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "model/coding.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "server/checked_file.h"
#include "server/client/frame.h"
#include "server/mean.h"
#include "server/outer_update.h"
#include "server/replay.h"
#include "server/run_terms.h"
#include "server/shard_host.h"
#include "tests/base/expect.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
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
    initial_ = *Pull(0, {0, size()});
  }
  // Another run.
  void OpenWithFragments(uint32_t fragments) {
    run_.run = "run-of-fragments";
    open_.set_run(run_.run);
    open_.mutable_spec()->mutable_averaging()->mutable_fragments()->set_count(fragments);
    ASSERT_TRUE(host_->OpenRun(open_).ok());
  }
  void Restart() {
    host_.reset();
    ShardHost::Options options{folder_.path(), "agg-0", &counters_};
    options.threads = 2;
    options.archive = true;
    auto host = ShardHost::Open(options);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    for (uint32_t group = 0; group < 2; ++group) {
      host_->Fence(FenceOf(run_.run, group, run_.generation));
    }
  }

  const v1::Averaging& averaging() const { return open_.spec().averaging(); }
  int64_t size() const { return run_.parameters(); }
  std::string FrameOf(const std::vector<float>& change, int64_t begin = 0) const {
    return FrameOf(change, std::vector<Interval>{{begin, begin + std::ssize(change)}});
  }
  std::string FrameOf(const std::vector<float>& change,
                      const std::vector<Interval>& positions) const {
    std::string frame;
    EXPECT_TRUE(
        EncodeFrame(units_->In(positions), CodecOf(*CodingOf(averaging().up())), change, &frame)
            .ok());
    return frame;
  }
  v1::ContributionHeader FrameHeader(const Place& place, const std::string& frame,
                                     Interval positions) const {
    return FrameHeader(place, frame, std::vector<Interval>{positions});
  }
  v1::ContributionHeader FrameHeader(const Place& place, const std::string& frame,
                                     const std::vector<Interval>& positions) const {
    v1::ContributionHeader header = Header(run_, place, 0, 0, 1 << 10);
    for (const Interval& interval : positions) {
      header.mutable_ranges()->MergeFrom(
          Header(run_, place, interval.begin, interval.end, 1 << 10).ranges());
    }
    header.set_codec(averaging().up().codec());
    header.set_frame_elements(frame.size() / sizeof(float));
    return header;
  }
  // What a round exchanges in a run with `fragments`.
  std::vector<Interval> ExchangedIn(uint32_t round, uint32_t fragments) const {
    return units_->FragmentIn({0, size()}, FragmentIn(round, fragments), fragments);
  }
  static uint32_t FragmentIn(uint32_t round, uint32_t fragments) {
    return fragments == 1 ? 0 : 1 + (round - 1) % fragments;
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
    v1::PullRequest request = PullOf(run_, version, positions.begin, positions.end);
    request.set_frame_from(0);
    auto pull = host_->Pull(request);
    EXPECT_TRUE(pull.ok()) << pull.status();
    if (!pull.ok()) return {};
    std::string frame((*pull)->left() * sizeof(float), 0);
    EXPECT_TRUE((*pull)->Next({frame.data(), frame.size()}).ok());
    const uint32_t fragments = FragmentsOf(averaging());
    const auto changed = units_->FragmentIn(positions, (*pull)->frame().fragment, fragments);
    std::vector<float> difference;
    EXPECT_TRUE(
        DecodeFrame(units_->In(changed), CodecOf(*CodingOf(averaging().down())), frame, &difference)
            .ok());
    std::vector<float> after(before.begin() + positions.begin, before.begin() + positions.end);
    auto change = difference.begin();
    for (const Interval& interval : changed) {
      for (int64_t p = interval.begin; p < interval.end; ++p) {
        after[p - positions.begin] += *change++;
      }
    }
    return after;
  }
  std::string RunFolder() const { return absl::StrCat(folder_.path(), "/", run_.run); }
  absl::StatusOr<ReplayedShard> Replay() {
    const TemporaryFolder scratch;
    uint32_t calls = 0;
    auto shard = ReplayShard(RunFolder(), scratch.path(), [&](uint32_t version, uint32_t versions) {
      EXPECT_EQ(version, ++calls);
      EXPECT_GE(versions, version);
    });
    return shard;
  }
  // Compares versions with the formulas, which are computed here for all exchanged values at once.
  void FollowFormulas(uint32_t fragments);

  SmallRun run_;
  v1::OpenRun open_;
  std::unique_ptr<ExchangeUnits> units_;
  TemporaryFolder folder_;
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
  // Version 0.
  std::optional<std::vector<float>> initial_;
};

std::vector<float> ValuesAt(const std::vector<float>& values,
                            const std::vector<Interval>& positions) {
  std::vector<float> some;
  for (const Interval& interval : positions) {
    some.insert(some.end(), values.begin() + interval.begin, values.begin() + interval.end);
  }
  return some;
}

void Replace(const std::vector<Interval>& positions, const std::vector<float>& some,
             std::vector<float>* values) {
  auto from = some.begin();
  for (const Interval& interval : positions) {
    std::copy_n(from, interval.size(), values->begin() + interval.begin);
    from += interval.size();
  }
}

void CodedRoundsTest::FollowFormulas(uint32_t fragments) {
  std::vector<float> version = *Pull(0, {0, size()});
  std::vector<float> residual(size());
  std::vector<float> momentum(size());
  const Codec up = CodecOf(*CodingOf(averaging().up()));
  const Codec down = CodecOf(*CodingOf(averaging().down()));
  for (uint32_t round = 1; round <= 4; ++round) {
    const std::vector<Interval> positions = ExchangedIn(round, fragments);
    const std::vector<ExchangeUnit> units = units_->In(positions);
    const std::vector<float> published = ValuesAt(version, positions);
    const auto n = std::ssize(published);
    std::vector<float> left_out = ValuesAt(residual, positions);
    std::vector<float> exact = published;
    AddWeighted(1, left_out, exact);
    std::vector<float> mean(n);
    const std::vector<float> weights = MeanWeights(std::vector<uint64_t>{100, 300});
    for (uint32_t group = 0; group < 2; ++group) {
      std::vector<float> change = Values(10 * round + group, n);
      const std::string frame = FrameOf(change, positions);
      const Place place{.round = round, .group = group, .samples = group == 0 ? 100U : 300U};
      v1::ContributionHeader header = FrameHeader(place, frame, positions);
      header.set_fragment(FragmentIn(round, fragments));
      ASSERT_EQ(StageAs(header, frame), absl::OkStatus());
      ASSERT_TRUE(DecodeFrame(units, up, frame, &change).ok());
      (group == 0 ? SetWeighted : AddWeighted)(weights[group], change, mean);
    }
    AddWeighted(1, exact, mean);
    v1::Apply order = Order(round, {{.group = 0, .samples = 100}, {.group = 1, .samples = 300}});
    order.set_fragment(FragmentIn(round, fragments));
    std::vector<float> of_momentum = ValuesAt(momentum, positions);
    OuterUpdate(order.outer(), round).Update(exact, mean, {of_momentum});
    Replace(positions, of_momentum, &momentum);
    std::vector<float> difference(n);
    for (int64_t i = 0; i < n; ++i) difference[i] = mean[i] - published[i];
    std::string frame;
    ASSERT_TRUE(EncodeFrame(units, down, difference, &frame).ok());
    ASSERT_TRUE(DecodeFrame(units, down, frame, &difference).ok());
    const std::vector<float> before = version;
    AddWeighted(1, published, difference);
    Replace(positions, difference, &version);
    double change_squared = 0;
    double residual_squared = 0;
    for (int64_t i = 0; i < n; ++i) {
      left_out[i] = mean[i] - difference[i];
      residual_squared += double{left_out[i]} * left_out[i];
      change_squared += double{mean[i] - exact[i]} * (mean[i] - exact[i]);
    }
    Replace(positions, left_out, &residual);
    const auto applied = host_->Apply(order);
    ASSERT_TRUE(applied.ok()) << applied.status();
    EXPECT_EQ(applied->error(), "");
    EXPECT_EQ(applied->digest(), Digest(version, 0)) << "round " << round;
    EXPECT_GT(applied->variance_between_groups(), 0);
    EXPECT_NEAR(applied->residual().change_squared(), change_squared, 1e-6 * change_squared);
    EXPECT_NEAR(applied->residual().residual_squared(), residual_squared, 1e-6 * residual_squared);
    EXPECT_TRUE(SameBits(*Pull(round, {0, size()}), version));
    EXPECT_TRUE(SameBits(Follow(before, round, {0, size()}), version));
    const Interval second = {kUnitSize, size()};
    EXPECT_TRUE(SameBits(Follow(before, round, second), std::span(version).subspan(kUnitSize)));
    Restart();
    const auto repeated = host_->Apply(order);
    EXPECT_EQ(repeated->digest(), Digest(version, 0)) << "repeated";
    EXPECT_EQ(repeated->residual().change_squared(), applied->residual().change_squared());
  }
  EXPECT_THAT(Pull(1, {0, size()}), IsError(absl::StatusCode::kFailedPrecondition, "not stored"));
  // A rank that has an old version follows the frames.
  std::vector<float> followed = *initial_;
  for (uint32_t round = 1; round <= 4; ++round) followed = Follow(followed, round, {0, size()});
  EXPECT_TRUE(SameBits(followed, version));

  const absl::StatusOr<ReplayedShard> replayed = Replay();
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->version, 4U);
  EXPECT_EQ(replayed->digest, Digest(version, 0));
}

TEST_F(CodedRoundsTest, VersionsFollowTheFormulas) { FollowFormulas(1); }

// Two units are in fragment 1, the one between them is in fragment 2.
TEST_F(CodedRoundsTest, FragmentsFollowTheFormulas) {
  OpenWithFragments(2);
  FollowFormulas(2);
}

// Each fragment has one unit.
TEST_F(CodedRoundsTest, SmallFragmentsFollowTheFormulas) {
  OpenWithFragments(3);
  FollowFormulas(3);
}

TEST_F(CodedRoundsTest, FragmentsAreChecked) {
  OpenWithFragments(2);
  const std::vector<Interval> first = ExchangedIn(1, 2);
  const std::string frame = FrameOf(Values(1, size() - 904), first);
  const auto refusal = [&](uint32_t round, uint32_t fragment, const std::vector<Interval>& spans) {
    v1::ContributionHeader header = FrameHeader({.round = round}, frame, spans);
    header.set_base_version(round - 1);
    header.set_fragment(fragment);
    return std::string(host_->Stage(header).status().message());
  };
  EXPECT_THAT(refusal(1, 2, ExchangedIn(2, 2)), HasSubstr("has fragment 2; the run has 2"));
  EXPECT_THAT(refusal(1, 3, first), HasSubstr("has fragment 3"));
  EXPECT_THAT(refusal(1, 1, {{0, size()}}), HasSubstr("are not in fragment 1"));
  v1::ContributionHeader header = FrameHeader({}, frame, first);
  header.set_fragment(1);
  ASSERT_EQ(StageAs(header, frame), absl::OkStatus());
  EXPECT_THAT(host_->Apply(Order(1, {{}}))->error(), HasSubstr("has fragment 1, the round has 0"));
  v1::Apply order = Order(1, {{}});
  order.set_fragment(3);
  EXPECT_THAT(host_->Apply(order)->error(), HasSubstr("with fragment 3; the run has 2"));
  order.set_fragment(1);
  EXPECT_EQ(host_->Apply(order)->error(), "");
}

// Values in fp32, without codes and outer optimizer.
TEST_F(CodedRoundsTest, FragmentsOfValues) {
  run_.run = "run-2";
  open_ = run_.Open();
  open_.mutable_spec()->mutable_averaging()->mutable_fragments()->set_count(2);
  ASSERT_TRUE(host_->OpenRun(open_).ok());
  std::vector<float> version = *Pull(0, {0, size()});
  for (uint32_t round = 1; round <= 2; ++round) {
    const std::vector<Interval> positions = ExchangedIn(round, 2);
    const std::vector<float> values = Values(round, size());
    std::string bytes;
    for (const Interval& interval : positions) {
      bytes.append(reinterpret_cast<const char*>(values.data() + interval.begin),
                   interval.size() * sizeof(float));
    }
    v1::ContributionHeader header = FrameHeader({.round = round}, "", positions);
    header.set_codec(v1::CODEC_FP32);
    header.clear_frame_elements();
    header.set_fragment(round);
    ASSERT_EQ(StageAs(header, bytes), absl::OkStatus());
    v1::Apply order = MakeApply(run_, round, {{}});
    order.set_fragment(round);
    Replace(positions, ValuesAt(values, positions), &version);
    EXPECT_EQ(host_->Apply(order)->digest(), Digest(version, 0));
    EXPECT_TRUE(SameBits(*Pull(round, {0, size()}), version));
  }
}

// Frames are kept as long as all of them together are shorter than a version, also by the next
// process.
TEST_F(CodedRoundsTest, IncompleteArchivesAreNotReplayed) {
  FollowFormulas(1);
  const std::string archive = RunFolder() + "/";
  const auto expect = [&](absl::StatusCode code, absl::string_view message) {
    EXPECT_THAT(Replay(), IsError(code, std::string(message)));
  };
  // The weights of the order are not those of the version.
  const std::string order_file = archive + "order-3";
  const std::string order = *ReadChecked(PosixFileSystem(), order_file);
  v1::Apply other;
  ASSERT_TRUE(other.ParseFromString(order.substr(sizeof(uint64_t))));
  other.mutable_participants(0)->set_samples(99);
  ASSERT_EQ(WriteChecked(PosixFileSystem(), order_file,
                         order.substr(0, sizeof(uint64_t)) + other.SerializeAsString()),
            absl::OkStatus());
  expect(absl::StatusCode::kDataLoss, "version 3 has the digest ");
  std::filesystem::resize_file(order_file, 20);
  expect(absl::StatusCode::kDataLoss, "order-3: is damaged");
  std::filesystem::remove(order_file);
  expect(absl::StatusCode::kFailedPrecondition, "the archive lacks the order of version 3");

  ASSERT_EQ(WriteChecked(PosixFileSystem(), order_file, order), absl::OkStatus());
  const std::string contribution =
      absl::StrCat(archive, "archived-stage-2-1-", run_.generation, "-0");
  std::filesystem::resize_file(contribution, std::filesystem::file_size(contribution) - 1);
  expect(absl::StatusCode::kDataLoss, "stage-2-1-");
  std::filesystem::remove(contribution);
  expect(absl::StatusCode::kFailedPrecondition,
         "version 2: the archive lacks contributions of groups 1");
  v1::DeleteRun removal;
  removal.set_run(run_.run);
  removal.set_lineage(open_.lineage());
  ASSERT_EQ(host_->DeleteRun(removal), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(RunFolder()));
}

TEST_F(CodedRoundsTest, OldFramesAreRemoved) {
  const auto frames = [&] {
    std::vector<std::string> names;
    for (const std::string& name : Files(folder_.path() + "/" + run_.run)) {
      if (name.starts_with("frame-")) names.push_back(name);
    }
    return names;
  };
  // A frame in E3M0 has an eighth of a version.
  for (uint32_t round = 1; round <= 12; ++round) {
    ASSERT_EQ(Stage({.round = round}, FrameOf(Values(round, size()))), absl::OkStatus());
    ASSERT_EQ(host_->Apply(Order(round, {{}}))->error(), "");
    if (round == 9) Restart();
  }
  EXPECT_EQ(frames().size(), 7U);
  EXPECT_THAT(frames(), Contains("frame-6"));
  EXPECT_THAT(Pull(5, {0, size()}, 0), IsError(absl::StatusCode::kFailedPrecondition, "no frame"));
  EXPECT_TRUE(Pull(6, {0, size()}, 0).ok());
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

// Groups that contribute values in fp32, and do not train on after round 1.
TEST_F(CodedRoundsTest, ResidualIsAddedToValues) {
  run_.run = "run-2";
  open_ = run_.Open();
  open_.mutable_spec()->mutable_averaging()->mutable_down()->set_codec(v1::CODEC_STAT2);
  ASSERT_TRUE(host_->OpenRun(open_).ok());
  const std::vector<float> exact = Values(1, size());
  std::vector<float> values = exact;
  double last = 0;
  for (uint32_t round = 1; round <= 12; ++round) {
    v1::ContributionHeader header = FrameHeader({.round = round}, "", {0, size()});
    header.set_codec(v1::CODEC_FP32);
    header.clear_frame_elements();
    ASSERT_EQ(StageAs(header, std::string(reinterpret_cast<const char*>(values.data()),
                                          values.size() * sizeof(float))),
              absl::OkStatus());
    v1::Apply order = MakeApply(run_, round, {{}});
    *order.mutable_down() = *CodingOf(averaging().down());
    const auto applied = host_->Apply(order);
    ASSERT_TRUE(applied.ok()) << applied.status();
    ASSERT_EQ(applied->error(), "");
    values = *Pull(round, {0, size()});
    last = 0;
    double first = 0;
    for (int64_t i = 0; i < size(); ++i) {
      last += std::abs(double{exact[i]} - double{values[i]});
      first += std::abs(double{exact[i]});
    }
    last /= first;
    if (round == 1) {
      EXPECT_GT(last, 0.1);
    }
  }
  EXPECT_LT(last, 0.01);
}

// Another process can begin with the version before; this one would fail forever.
TEST_F(CodedRoundsTest, DamagedResidualLosesTheVersion) {
  const auto order = [this](uint32_t round) {
    v1::Apply apply = Order(round, {{}});
    apply.clear_outer();
    return apply;
  };
  const std::string frame = FrameOf(Values(1, size()));
  ASSERT_EQ(Stage({}, frame), absl::OkStatus());
  ASSERT_EQ(host_->Apply(order(1))->error(), "");
  const std::string path = absl::StrCat(folder_.path(), "/", run_.run, "/outer-1");
  std::string bytes = ReadAll(path);
  bytes.back() ^= 1;
  WriteAll(path, bytes);
  ASSERT_EQ(Stage({.round = 2}, frame), absl::OkStatus());
  EXPECT_THAT(host_->Apply(order(2)), IsError(absl::StatusCode::kUnavailable, "outer-1"));
  EXPECT_THAT(host_->CheckFiles(), IsError(absl::StatusCode::kFailedPrecondition, "outer-1"));
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

// Runs with Nesterov's momentum, one of which begins from a checkpoint of the other.
class ContinuedRunTest : public CodedRoundsTest {
 protected:
  // Another run. `from`: empty, or its checkpoint. `every_rounds`: of Nesterov's momentum.
  v1::RunOpened Begin(const std::string& run, uint32_t fragments, const std::string& from = "",
                      uint32_t every_rounds = 1) {
    run_.run = run;
    // Several stretches.
    run_.in = 400;
    run_.out = 400;
    open_ = run_.Open();
    v1::Averaging& averaging = *open_.mutable_spec()->mutable_averaging();
    averaging.mutable_up()->set_codec(v1::CODEC_STAT2);
    averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
    averaging.mutable_outer()->mutable_nesterov()->set_every_rounds(every_rounds);
    averaging.mutable_fragments()->set_count(fragments);
    open_.mutable_spec()->mutable_checkpoint()->set_from(from);
    units_ = std::make_unique<ExchangeUnits>(Index());
    return Open();
  }
  v1::RunOpened Open() {
    const auto opened = host_->OpenRun(open_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.value_or(v1::RunOpened());
  }
  ParameterIndex Index() const { return *ParameterIndex::FromModel(open_.spec().model()); }

  // Makes the version of a round from changes that depend on `salt`, and returns its digest.
  uint64_t Round(uint32_t round, uint32_t salt) {
    const uint32_t fragments = FragmentsOf(averaging());
    const std::vector<Interval> positions = ExchangedIn(round, fragments);
    int64_t elements = 0;
    for (const Interval& interval : positions) elements += interval.size();
    for (uint32_t group = 0; group < 2; ++group) {
      const std::string frame = FrameOf(Values(10 * salt + group, elements), positions);
      v1::ContributionHeader header =
          FrameHeader({.round = round, .group = group}, frame, positions);
      header.set_fragment(FragmentIn(round, fragments));
      EXPECT_EQ(StageAs(header, frame), absl::OkStatus());
    }
    v1::Apply order = Order(round, {{.group = 0}, {.group = 1}});
    order.set_fragment(FragmentIn(round, fragments));
    const auto applied = host_->Apply(order);
    EXPECT_TRUE(applied.ok()) << applied.status();
    EXPECT_EQ(applied->error(), "");
    return applied->digest();
  }

  absl::StatusOr<std::vector<float>> PullState(uint32_t version, uint32_t state,
                                               Interval positions) {
    v1::PullRequest request = PullOf(run_, version, positions.begin, positions.end);
    request.set_state(state);
    auto pull = host_->Pull(request);
    if (!pull.ok()) return pull.status();
    std::vector<float> values((*pull)->left());
    const auto read =
        (*pull)->Next({reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)});
    if (!read.ok()) return read.status();
    EXPECT_EQ(*read, std::ssize(values));
    return values;
  }

  // Writes what a worker would save of the version, and the momentum and the residual.
  void WriteCheckpoint(const std::string& folder, uint32_t version) {
    std::filesystem::create_directory(folder);
    const ParameterIndex index = Index();
    const std::vector<std::string> names = {"nesterov_momentum", "version_residual"};
    std::vector<float> states;
    for (uint32_t i = 0; i < 2; ++i) {
      const auto state = PullState(version, i, {0, size()});
      ASSERT_TRUE(state.ok()) << state.status();
      states.insert(states.end(), state->begin(), state->end());
    }
    const auto write = [&](const char* name, const std::vector<NamedShape>& tensors,
                           std::span<const float> values) {
      ASSERT_EQ(WriteSafetensors(absl::StrCat(folder, "/", name), tensors, values),
                absl::OkStatus());
    };
    write(kModelFile, WeightTensors(index), *Pull(version, {0, size()}));
    write(kOptimizerFile, {}, {});
    write(kAveragingFile, StateTensors(index, names), states);
    v1::CheckpointManifest manifest;
    manifest.set_format_version(kCheckpointFormat);
    for (const std::string& name : names) manifest.add_averaging_state()->set_name(name);
    ASSERT_EQ(WriteManifest(absl::StrCat(folder, "/", kManifestFile), manifest), absl::OkStatus());
  }

  TemporaryFolder checkpoints_;
};

TEST_F(ContinuedRunTest, MomentumAndResidualContinue) {
  for (const uint32_t fragments : {1, 2}) {
    Begin(absl::StrCat("whole-", fragments), fragments);
    Round(1, 1);
    Round(2, 2);
    const std::string from = checkpoints_ / absl::StrCat(fragments);
    WriteCheckpoint(from, 2);
    std::vector<std::vector<float>> states;
    for (const uint32_t state : {0, 1}) {
      states.push_back(*PullState(2, state, {0, size()}));
      EXPECT_NE(Digest(states.back(), 0), Digest(std::vector<float>(size()), 0));
      // Any positions.
      EXPECT_TRUE(SameBits(*PullState(2, state, {65000, 140000}),
                           std::span(states.back()).subspan(65000, 75000)));
    }
    const uint64_t third = Round(3, 3);
    const uint64_t fourth = Round(4, 4);

    Begin(absl::StrCat("continued-", fragments), fragments, from);
    Restart();
    for (const uint32_t state : {0, 1}) {
      EXPECT_TRUE(SameBits(*PullState(0, state, {0, size()}), states[state]));
    }
    EXPECT_EQ(Round(1, 3), third);
    Restart();
    EXPECT_EQ(Round(2, 4), fourth);
    const absl::StatusOr<ReplayedShard> replayed = Replay();
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->version, 2U);
    EXPECT_EQ(replayed->digest, fourth);

    // A checkpoint without states, as older builds have written it.
    v1::CheckpointManifest manifest = *ReadManifest(from + "/manifest.textproto");
    manifest.clear_averaging_state();
    ASSERT_EQ(WriteManifest(from + "/manifest.textproto", manifest), absl::OkStatus());
    Begin(absl::StrCat("bare-", fragments), fragments, from);
    EXPECT_TRUE(SameBits(*PullState(0, 0, {0, size()}), std::vector<float>(size())));
    EXPECT_NE(Round(1, 3), third);
  }
}

TEST_F(ContinuedRunTest, LostStatesAreReadAgain) {
  Begin("whole", 1);
  Round(1, 1);
  WriteCheckpoint(checkpoints_ / "from", 1);
  const uint64_t second = Round(2, 2);
  Begin("continued", 1, checkpoints_ / "from");
  const std::string path = RunFolder() + "/outer-0";
  std::string bytes = ReadAll(path);
  bytes.back() ^= 1;
  WriteAll(path, bytes);
  Restart();
  EXPECT_EQ(Open().error(), "");
  EXPECT_EQ(Round(1, 2), second);
}

TEST_F(ContinuedRunTest, UnusableStatesAreRefused) {
  Begin("whole", 1);
  Round(1, 1);
  const std::string from = checkpoints_ / "from";
  WriteCheckpoint(from, 1);
  EXPECT_THAT(PullState(1, 2, {0, size()}),
              IsError(absl::StatusCode::kInvalidArgument, "state 2 is requested; the run has 2"));
  v1::PullRequest request = PullOf(run_, 1, 0, size());
  request.set_state(0);
  request.set_frame_from(0);
  EXPECT_THAT(host_->Pull(request).status(),
              IsError(absl::StatusCode::kInvalidArgument, "a state and a frame"));
  const std::string path = from + "/averaging.safetensors";
  const std::string bytes = ReadAll(path);
  WriteAll(path, absl::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_THAT(Begin("truncated", 1, from).error(),
              AllOf(HasSubstr("checkpoint.from"), HasSubstr(path)));
  ASSERT_EQ(WriteSafetensors(path, StateTensors(Index(), {"nesterov_momentum"}),
                             std::vector<float>(size())),
            absl::OkStatus());
  EXPECT_THAT(Begin("mismatching", 1, from).error(),
              AllOf(HasSubstr(path), HasSubstr("fc/weight@version_residual")));
  std::filesystem::remove(path);
  EXPECT_THAT(Begin("missing", 1, from).error(), HasSubstr(path));
  // The sum of delayed Nesterov, which checkpoints do not contain, has no name.
  v1::CheckpointManifest manifest = *ReadManifest(from + "/manifest.textproto");
  manifest.clear_averaging_state();
  manifest.add_averaging_state();
  ASSERT_EQ(WriteManifest(from + "/manifest.textproto", manifest), absl::OkStatus());
  ASSERT_EQ(WriteSafetensors(path, StateTensors(Index(), {""}), std::vector<float>(size())),
            absl::OkStatus());
  EXPECT_THAT(Begin("unnamed", 1, from, /*every_rounds=*/2).error(),
              HasSubstr("a state without a name"));
}

}  // namespace
}  // namespace cadre::testing
