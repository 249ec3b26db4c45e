// Rounds whose contributions and versions are frames of differences, on a shard host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/digest.h"
#include "base/weighted_sums.h"
#include "server/archive.h"
#include "server/block_file.h"
#include "server/checked_file.h"
#include "server/mean.h"
#include "server/outer_update.h"
#include "tests/base/expect.h"
#include "tests/server/coded_rounds_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

// Compares versions with the formulas, which are computed here for all exchanged values at once.
class FormulasTest : public CodedRoundsTest {
 protected:
  // Stages a change of each group; returns the mean of what their frames contain.
  std::vector<float> StageChanges(uint32_t round, uint32_t fragment,
                                  const std::vector<Interval>& positions, int64_t count) {
    std::vector<float> mean(count);
    const std::vector<float> weights = MeanWeights(std::vector<uint64_t>{100, 300});
    for (uint32_t group = 0; group < 2; ++group) {
      std::vector<float> change = Values(10 * round + group, count);
      const std::string frame = FrameOf(change, positions);
      const Place place{.round = round, .group = group, .samples = group == 0 ? 100U : 300U};
      v1::ContributionHeader header = FrameHeader(place, frame, positions);
      header.set_fragment(fragment);
      EXPECT_EQ(StageAs(header, frame), absl::OkStatus());
      const Codec up = CodecOf(*CodingOf(averaging().up()));
      EXPECT_TRUE(DecodeFrame(units_->In(positions), up, frame, &change).ok());
      (group == 0 ? SetWeighted : AddWeighted)(weights[group], change, mean);
    }
    return mean;
  }

  void FollowRound(uint32_t round, uint32_t fragments) {
    const std::vector<Interval> positions = ExchangedIn(round, fragments);
    const std::vector<ExchangeUnit> units = units_->In(positions);
    const std::vector<float> published = ValuesAt(version_, positions);
    const auto n = std::ssize(published);
    std::vector<float> left_out = ValuesAt(residual_, positions);
    std::vector<float> exact = published;
    AddWeighted(1, left_out, exact);
    std::vector<float> mean = StageChanges(round, FragmentIn(round, fragments), positions, n);
    AddWeighted(1, exact, mean);
    v1::Apply order = Order(round, {{.group = 0, .samples = 100}, {.group = 1, .samples = 300}});
    order.set_fragment(FragmentIn(round, fragments));
    std::vector<float> of_momentum = ValuesAt(momentum_, positions);
    OuterUpdate(order.outer(), round).Update(exact, mean, {of_momentum});
    Replace(positions, of_momentum, &momentum_);
    std::vector<float> difference(n);
    for (int64_t i = 0; i < n; ++i) difference[i] = mean[i] - published[i];
    const Codec down = CodecOf(*CodingOf(averaging().down()));
    std::string frame;
    ASSERT_TRUE(EncodeFrame(units, down, difference, &frame).ok());
    ASSERT_TRUE(DecodeFrame(units, down, frame, &difference).ok());
    const std::vector<float> before = version_;
    AddWeighted(1, published, difference);
    Replace(positions, difference, &version_);
    double change_squared = 0;
    double residual_squared = 0;
    for (int64_t i = 0; i < n; ++i) {
      left_out[i] = mean[i] - difference[i];
      residual_squared += double{left_out[i]} * left_out[i];
      change_squared += double{mean[i] - exact[i]} * (mean[i] - exact[i]);
    }
    Replace(positions, left_out, &residual_);
    const v1::Applied applied = Apply(order);
    EXPECT_GT(applied.variance_between_groups(), 0);
    EXPECT_NEAR(applied.residual().change_squared(), change_squared, 1e-6 * change_squared);
    EXPECT_NEAR(applied.residual().residual_squared(), residual_squared, 1e-6 * residual_squared);
    EXPECT_TRUE(SameBits(*Pull(round, {0, size()}), version_));
    EXPECT_TRUE(SameBits(Follow(before, round, {0, size()}), version_));
    const Interval second = {kUnitSize, size()};
    EXPECT_TRUE(SameBits(Follow(before, round, second), std::span(version_).subspan(kUnitSize)));
    Restart();
    EXPECT_EQ(Apply(order).residual().change_squared(), applied.residual().change_squared());
  }

  // The version must be that of the formulas.
  v1::Applied Apply(const v1::Apply& order) {
    const auto applied = host_->Apply(order);
    EXPECT_TRUE(applied.ok()) << applied.status();
    if (!applied.ok()) return {};
    EXPECT_EQ(applied->error(), "");
    EXPECT_EQ(applied->digest(), Digest(version_, 0)) << "round " << order.round();
    return *applied;
  }

  void FollowFormulas(uint32_t fragments) {
    version_ = *Pull(0, {0, size()});
    residual_.assign(size(), 0);
    momentum_.assign(size(), 0);
    for (uint32_t round = 1; round <= 4; ++round) {
      ASSERT_NO_FATAL_FAILURE(FollowRound(round, fragments));
    }
    EXPECT_THAT(Pull(1, {0, size()}), IsError(absl::StatusCode::kFailedPrecondition, "not stored"));
    // A rank that has an old version follows the frames.
    std::vector<float> followed = *initial_;
    for (uint32_t round = 1; round <= 4; ++round) followed = Follow(followed, round, {0, size()});
    EXPECT_TRUE(SameBits(followed, version_));

    const absl::StatusOr<ReplayedShard> replayed = Replay();
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->version, 4U);
    EXPECT_EQ(replayed->digest, Digest(version_, 0));
  }

  std::vector<float> version_;
  std::vector<float> residual_;
  std::vector<float> momentum_;
};

TEST_F(FormulasTest, VersionsFollowTheFormulas) { FollowFormulas(1); }

// Two units are in fragment 1, the one between them is in fragment 2.
TEST_F(FormulasTest, FragmentsFollowTheFormulas) {
  OpenWithFragments(2);
  FollowFormulas(2);
}

// Each fragment has one unit.
TEST_F(FormulasTest, SmallFragmentsFollowTheFormulas) {
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

TEST_F(FormulasTest, IncompleteArchivesAreNotReplayed) {
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

// Frames are kept as long as all of them together are shorter than a version, also by the next
// process.
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

TEST_F(CodedRoundsTest, NewerFormatsAreRefused) {
  ASSERT_EQ(Stage({}, FrameOf(Values(1, size()))), absl::OkStatus());
  ASSERT_EQ(host_->Apply(Order(1, {{}}))->error(), "");
  host_.reset();
  const std::string run = folder_.path() + "/" + run_.run;
  {
    const auto file =
        BlockFile::Open(PosixFileSystem(), run + "/frame-1", Access::kReadWrite).value();
    std::string meta = file->head().meta;
    meta[4] = 3;
    ASSERT_EQ(file->RewriteHead(meta, file->head().data_bytes), absl::OkStatus());
  }
  EXPECT_THAT(ShardHost::Open({folder_.path(), "agg-0", &counters_}),
              IsError(absl::StatusCode::kFailedPrecondition, run + "/frame-1: format 3"));
  EXPECT_TRUE(std::filesystem::exists(run + "/frame-1"));
  ASSERT_EQ(WriteChecked(PosixFileSystem(), run + "/order-1", "CDRFMT02 and more"),
            absl::OkStatus());
  EXPECT_THAT(ReadArchive(PosixFileSystem(), run),
              IsError(absl::StatusCode::kFailedPrecondition, run + "/order-1: format 2"));
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

}  // namespace
}  // namespace cadre::testing
