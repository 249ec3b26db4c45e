#include "member/shard_values.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "model/exchange_units.h"
#include "model/frame.h"
#include "model/parameter_index.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

// More units than one thread takes at a time, and a bias that is not coded.
constexpr char kModel[] = R"(
    input { channels: 1 height: 1 width: 700 }
    layer { name: "fc" fully_connected { out_features: 1000 } }
    layer { name: "loss" softmax_cross_entropy {} })";

struct Case {
  v1::Codec up = v1::CODEC_UNSPECIFIED;
  v1::Codec down = v1::CODEC_UNSPECIFIED;
  bool overlaps = false;
};

class ShardValuesTest : public ::testing::TestWithParam<Case> {
 protected:
  static void Change(std::mt19937_64& random, std::span<float> values) {
    std::normal_distribution<float> normal;
    for (float& value : values) value += 0.01F * normal(random);
  }
  static v1::Averaging AveragingOf(const Case& one) {
    v1::Averaging averaging;
    averaging.set_every_steps(4);
    averaging.mutable_staleness()->set_max_rounds(2);
    if (one.up != v1::CODEC_UNSPECIFIED) averaging.mutable_up()->set_codec(one.up);
    if (one.down != v1::CODEC_UNSPECIFIED) averaging.mutable_down()->set_codec(one.down);
    if (one.overlaps) averaging.mutable_overlap()->set_steps(1);
    return averaging;
  }
  // All that three rounds, of which a version does not include the second, transfer and give.
  std::string Exchange(int threads) const {
    const ExchangeForm form{.index = index_,
                            .units = &units_,
                            .averaging = AveragingOf(GetParam()),
                            .threads = threads};
    std::mt19937_64 random(3);
    std::vector<float> owned(index_.size());
    Change(random, owned);
    ShardValues values(form, {{{0, index_.size()}, owned}});
    values.SetInitial();
    TrainerProgress progress;
    std::string results;
    const auto add = [&](const void* data, size_t bytes) {
      results.append(static_cast<const char*>(data), bytes);
    };
    for (uint32_t round = 1; round <= 3; ++round) {
      Change(random, owned);
      values.BeginContribution(round, /*fragment=*/0);
      if (form.overlaps()) Change(random, owned);
      EXPECT_THAT(values.MakeContribution(progress), IsOk());
      add(values.bytes().data(), values.bytes().size());
      values.Decide(round, /*included=*/round != 2, /*screened=*/false, progress);
      Pull(form, round, random, values);
      values.Adopt();
      add(owned.data(), owned.size() * sizeof(float));
      if (form.overlaps()) values.Merge();
      add(owned.data(), owned.size() * sizeof(float));
      std::vector<float> carried(owned.size());
      values.CopyCarried(carried, /*weighted=*/true);
      add(carried.data(), carried.size() * sizeof(float));
    }
    return results;
  }
  void Pull(const ExchangeForm& form, uint32_t round, std::mt19937_64& random,
            ShardValues& values) const {
    std::vector<float> change(index_.size());
    Change(random, change);
    if (!form.down) {
      const std::span<float> version = values.BeginVersion();
      for (size_t i = 0; i < change.size(); ++i) version[i] += change[i];
      return values.SetVersion(round);
    }
    PulledFrame frame;
    TrainerProgress progress;
    EXPECT_THAT(
        EncodeFrame(units_.In({0, index_.size()}), CodecOf(*form.down), change, &frame.bytes),
        IsOk());
    EXPECT_THAT(values.AddFrame(frame, progress), IsOk());
    EXPECT_EQ(values.version_number(), round);
  }

  const ParameterIndex index_ = *ParameterIndex::FromModel(Parse<v1::Model>(kModel));
  const ExchangeUnits units_{index_};
};

TEST_P(ShardValuesTest, DoNotDependOnTheNumberOfThreads) {
  const std::string one = Exchange(1);
  EXPECT_TRUE(one == Exchange(2));
  EXPECT_TRUE(one == Exchange(5));
}

// A frame is divided among threads before it is decoded.
TEST_P(ShardValuesTest, MalformedFramesAreRefused) {
  if (GetParam().down == v1::CODEC_UNSPECIFIED) return;
  for (const int threads : {1, 3}) {
    const ExchangeForm form{.index = index_,
                            .units = &units_,
                            .averaging = AveragingOf(GetParam()),
                            .threads = threads};
    std::vector<float> owned(index_.size());
    ShardValues values(form, {{{0, index_.size()}, owned}});
    TrainerProgress progress;
    const std::vector<float> change(index_.size(), 0.5F);
    PulledFrame frame;
    ASSERT_THAT(
        EncodeFrame(units_.In({0, index_.size()}), CodecOf(*form.down), change, &frame.bytes),
        IsOk());
    const std::string whole = frame.bytes;
    for (const std::string& bytes : {whole.substr(0, whole.size() - 4), whole + "more"}) {
      values.SetInitial();
      frame.bytes = bytes;
      EXPECT_THAT(values.AddFrame(frame, progress), IsError(kDataLoss, ""));
      EXPECT_FALSE(values.version_number().has_value());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardValuesTest,
                         ::testing::Values(Case{}, Case{.overlaps = true},
                                           Case{v1::CODEC_E3M0, v1::CODEC_E3M0, false},
                                           Case{v1::CODEC_E3M0, v1::CODEC_E3M0, true},
                                           Case{v1::CODEC_TOPK, v1::CODEC_TOPK, false},
                                           Case{v1::CODEC_STAT2, v1::CODEC_UNSPECIFIED, true}));

}  // namespace
}  // namespace cadre
