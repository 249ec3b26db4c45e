// The network on an emulated CUDA device, compared with the same network on the reference back end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/base/expect.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/worker/nn/one_rank.h"
#include "worker/nn/network.h"

namespace cadre {
namespace {

using testing::CountingObserver;
using testing::kImages;
using testing::kManyClasses;
using testing::kResiduals;
using testing::kSampled;
using testing::kSamples;
using testing::kTokens;
using testing::kTranslation;
using testing::OneRank;
using testing::PlayLoaded;
using testing::RelativeDistance;
using Floats = std::vector<float>;
using Mode = EmulatedCuda::Mode;

// Operations that kImages lacks.
constexpr char kWindows[] = R"(
  input { channels: 3 height: 8 width: 6 }
  layer { name: "conv1" convolution { out_channels: 6 kernel: 3 padding: 1 stride: 2 no_bias: true } }
  layer { name: "bn" batch_norm {} }
  layer { name: "relu" relu {} }
  layer { name: "max" max_pool { kernel: 2 stride: 1 } }
  layer { name: "conv2" convolution { out_channels: 8 kernel: 2 } }
  layer { name: "mean" global_average_pool {} }
  layer { name: "fc" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
)";

struct Case {
  const char* name;
  const char* model;
  Mode mode;
  Precision precision;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class DeviceNetwork : public ::testing::TestWithParam<Case> {
 protected:
  DeviceNetwork()
      : emulated_(MakeEmulatedRank(
            {.mode = GetParam().mode, .precision = GetParam().precision, .memory = 64 << 20})),
        host_(GetParam().model),
        rank_(GetParam().model, *emulated_.kernels) {
    EXPECT_EQ(emulated_.kernels->activation_type(), narrow() ? DType::kBFloat16 : DType::kFloat32);
  }

  bool narrow() const { return GetParam().precision == Precision::kBf16; }
  // Sums have some dozens of products. fp32 rounds at 2^-24, and the orders of sums differ; bf16
  // activations round at 2^-9 in a dozen layers.
  double tolerance() const { return narrow() ? 0.06 : 2e-5; }
  CudaDevice& device() { return *emulated_.device; }

  static std::vector<Floats> Gradients(OneRank& rank) {
    std::vector<Floats> gradients;
    for (int b = 0; b < rank.store().buckets(); ++b) {
      gradients.push_back(rank.Read(rank.store().gradients(b)));
    }
    return gradients;
  }

  // w -= rate * gradient.
  static void Update(OneRank& rank) {
    for (int b = 0; b < rank.store().buckets(); ++b) {
      Floats weights = rank.Read(rank.store().weights(b));
      const Floats gradients = rank.Read(rank.store().gradients(b));
      for (const LocalParameter& local : rank.store().ownership(b).parameters) {
        if (IsStatistic(rank.index()[local.parameter].role)) continue;
        for (int64_t i = local.offset; i < local.offset + local.size(); ++i) {
          weights[i] -= 0.05F * gradients[i];
        }
      }
      rank.Write(weights, rank.store().weights(b));
    }
  }

  EmulatedRank emulated_;
  OneRank host_;
  OneRank rank_;
};

TEST_P(DeviceNetwork, EqualsTheHost) {
  for (int step = 0; step < 3; ++step) {
    const double loss = host_.Loss();
    ASSERT_NEAR(rank_.Loss(), loss, tolerance() * loss) << "step " << step;
    EXPECT_EQ(rank_.LossOfLastPass().samples, host_.LossOfLastPass().samples);
    const std::vector<Floats> expected = Gradients(host_);
    const std::vector<Floats> found = Gradients(rank_);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t b = 0; b < found.size(); ++b) {
      EXPECT_LT(RelativeDistance(found[b], expected[b]), tolerance())
          << "bucket " << b << " of step " << step;
    }
    Update(host_);
    Update(rank_);
  }
  const auto expected = host_.network().Evaluate(host_.batch());
  const auto found = rank_.network().Evaluate(rank_.batch());
  ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
  EXPECT_NEAR(found->loss, expected->loss, tolerance() * expected->loss);
  EXPECT_EQ(found->samples, expected->samples);
}

TEST_P(DeviceNetwork, RecomputationKeepsBits) {
  const double loss = rank_.Loss();
  for (const std::vector<Interval>& blocks : testing::BlocksOf(rank_.graph())) {
    const EmulatedRank emulated = MakeEmulatedRank(
        {.mode = Mode::kInline, .precision = GetParam().precision, .memory = 64 << 20});
    OneRank recomputing(GetParam().model, *emulated.kernels, blocks);
    EXPECT_EQ(recomputing.Loss(), loss);
    EXPECT_EQ(Gradients(recomputing), Gradients(rank_)) << blocks.size() << " blocks";
  }
}

TEST_P(DeviceNetwork, FusionKeepsBits) {
  const EmulatedRank emulated = MakeEmulatedRank(
      {.mode = Mode::kInline, .precision = GetParam().precision, .memory = 64 << 20});
  OneRank separate(GetParam().model, *emulated.kernels);
  separate.network().set_fusion(Fusion::kOff);
  EXPECT_EQ(rank_.Loss(), separate.Loss());
  EXPECT_EQ(Gradients(rank_), Gradients(separate));
}

TEST_P(DeviceNetwork, RepeatedPassesAreEqualAndDoNotBlock) {
  ASSERT_TRUE(rank_.network().Prepare(kSamples, true).ok());
  ASSERT_TRUE(rank_.network().ForwardBackward(rank_.batch(), rank_.loss_scale(), 1).ok());
  const std::vector<Floats> first = Gradients(rank_);
  const int64_t waits = device().host_syncs();
  const int64_t bytes = device().bytes_in_use();
  for (int again = 0; again < 3; ++again) {
    ASSERT_TRUE(rank_.network().ForwardBackward(rank_.batch(), rank_.loss_scale(), 1).ok());
  }
  EXPECT_EQ(device().host_syncs(), waits);
  EXPECT_EQ(device().bytes_in_use(), bytes) << "a pass allocates nothing";
  EXPECT_EQ(Gradients(rank_), first);
}

TEST_P(DeviceNetwork, RecordingPlaysTheLoadedBatch) {
  Network& network = rank_.network();
  BatchView other = rank_.batch();
  Floats inputs(rank_.inputs().rbegin(), rank_.inputs().rend());
  other.inputs = inputs;
  other.first_position += kSamples;
  const double first = rank_.Loss();
  const std::vector<Floats> first_gradients = Gradients(rank_);
  const double second = rank_.Loss(other, rank_.loss_scale());
  const std::vector<Floats> second_gradients = Gradients(rank_);
  EXPECT_NE(first, second);

  const int64_t moves = network.memory_moves();
  auto recording =
      device().CaptureGraph([&] { return PlayLoaded(network, kSamples, rank_.loss_scale()); });
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(Gradients(rank_), second_gradients) << "capturing executes nothing";
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(network.Load(rank_.batch()).ok());
    device().LaunchGraph(**recording);
    EXPECT_EQ(rank_.LossOfLastPass().loss * rank_.loss_scale(), first);
    EXPECT_EQ(Gradients(rank_), first_gradients);
    ASSERT_TRUE(network.Load(other).ok());
    device().LaunchGraph(**recording);
    EXPECT_EQ(rank_.LossOfLastPass().loss, second);
    EXPECT_EQ(Gradients(rank_), second_gradients);
  }
  EXPECT_EQ(network.memory_moves(), moves);
}

TEST_P(DeviceNetwork, FindsFirstNonFiniteLayer) {
  EXPECT_EQ(*rank_.network().FirstNotFinite(rank_.batch()), rank_.graph().size());
  const LayerParameter& last = rank_.graph()[rank_.graph().size() - 2].parameters[0];
  const std::string name = rank_.graph()[rank_.graph().size() - 2].name;
  Floats weights = rank_.Read(rank_.Weights(name + "/" + last.name));
  weights[0] = std::numeric_limits<float>::infinity();
  rank_.Write(weights, rank_.Weights(name + "/" + last.name));
  const auto first = rank_.network().FirstNotFinite(rank_.batch());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(rank_.graph()[*first].name, name);
}

TEST_P(DeviceNetwork, AcceptsEmptyBatch) {
  const absl::Status played = rank_.network().ForwardBackward({.samples = 0}, 1, 1);
  ASSERT_TRUE(played.ok()) << played;
  EXPECT_EQ(rank_.LossOfLastPass().samples, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DeviceNetwork,
    ::testing::Values(Case{"Images", kImages, Mode::kInline, Precision::kFp32},
                      Case{"ImagesInBf16", kImages, Mode::kInline, Precision::kBf16},
                      Case{"ImagesByThreads", kImages, Mode::kThreads, Precision::kFp32},
                      Case{"Windows", kWindows, Mode::kInline, Precision::kFp32},
                      Case{"WindowsInBf16", kWindows, Mode::kInline, Precision::kBf16},
                      Case{"Residuals", kResiduals, Mode::kInline, Precision::kFp32},
                      Case{"ResidualsInBf16", kResiduals, Mode::kInline, Precision::kBf16},
                      Case{"Tokens", kTokens, Mode::kInline, Precision::kFp32},
                      Case{"TokensInBf16", kTokens, Mode::kInline, Precision::kBf16},
                      Case{"ManyClasses", kManyClasses, Mode::kInline, Precision::kFp32},
                      Case{"ManyClassesInBf16", kManyClasses, Mode::kThreads, Precision::kBf16},
                      Case{"TokensByThreads", kTokens, Mode::kThreads, Precision::kBf16},
                      Case{"Translation", kTranslation, Mode::kInline, Precision::kFp32},
                      Case{"TranslationInBf16", kTranslation, Mode::kInline, Precision::kBf16},
                      Case{"TranslationByThreads", kTranslation, Mode::kThreads, Precision::kFp32},
                      Case{"Sampled", kSampled, Mode::kInline, Precision::kFp32},
                      Case{"SampledInBf16", kSampled, Mode::kInline, Precision::kBf16},
                      Case{"SampledByThreads", kSampled, Mode::kThreads, Precision::kFp32}),
    NameOf);

// Memory for a larger batch is also used for smaller ones.
TEST(DeviceNetworkMemory, GrowsOnlyForLargerBatches) {
  EmulatedRank emulated = MakeEmulatedRank(Mode::kInline);
  OneRank rank(kImages, *emulated.kernels);
  ASSERT_TRUE(rank.network().Prepare(1, true).ok());
  const int64_t small = rank.network().activation_bytes();
  EXPECT_EQ(rank.network().memory_moves(), 0);
  ASSERT_TRUE(rank.network().Prepare(kSamples, true).ok());
  EXPECT_GT(rank.network().activation_bytes(), small);
  EXPECT_EQ(rank.network().memory_moves(), 1);
  const double loss = rank.Loss();
  ASSERT_TRUE(rank.network().Prepare(2, false).ok());
  EXPECT_EQ(rank.network().memory_moves(), 1);
  EXPECT_EQ(rank.Loss(), loss);
}

// The tape, whose size is planned, has the memory of attention that is not fused.
TEST(DeviceNetworkMemory, ScoresOfAttentionAreActivations) {
  constexpr char kLongTokens[] = R"(
    tokens { length: 96 }
    layer { name: "embed" embedding { vocabulary: 5 features: 8 positions: true } }
    layer { name: "attention" attention { heads: 4 causal: true } }
    layer { name: "fc" fully_connected { out_features: 5 } }
    layer { name: "loss" softmax_cross_entropy {} }
  )";
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    EmulatedRank emulated =
        MakeEmulatedRank({.mode = Mode::kInline, .precision = precision, .memory = 64 << 20});
    OneRank rank(kLongTokens, *emulated.kernels);
    ASSERT_TRUE(rank.network().Prepare(kSamples, true).ok());
    const int64_t prepared = emulated.device->bytes_in_use();
    rank.Loss();
    constexpr int64_t kScores = kSamples * 4 * 96 * 96;
    EXPECT_LT(emulated.device->bytes_in_use() - prepared, int64_t{4} * kScores)
        << "scratch memory of kernels has no scores";
  }
}

TEST(DeviceNetworkMemory, OutOfMemoryNamesPurpose) {
  EmulatedRank emulated =
      MakeEmulatedRank({.mode = Mode::kInline, .precision = Precision::kFp32, .memory = 4 << 20});
  OneRank rank(kImages, *emulated.kernels);
  const absl::Status status = rank.network().Prepare(100'000, true);
  EXPECT_THAT(status, IsError(absl::StatusCode::kResourceExhausted, "activations"));
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::ContainsRegex("for activations \\(for batches of 100000, most at layer '"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("weights"));
  // The device no longer executes work.
  EXPECT_FALSE(rank.network().Load(rank.batch()).ok());
}

// Allocations after Prepare, or after a pass, are not labeled with a layer.
TEST(DeviceNetworkMemory, ClearsLabelsBetweenPasses) {
  for (const bool played : {false, true}) {
    EmulatedRank emulated =
        MakeEmulatedRank({.mode = Mode::kInline, .precision = Precision::kFp32, .memory = 8 << 20});
    OneRank rank(kImages, *emulated.kernels);
    ASSERT_TRUE(rank.network().Prepare(kSamples, true).ok());
    if (played) rank.Loss();
    EXPECT_EQ(emulated.device->Allocate(size_t{64} << 20, "something else"), nullptr);
    EXPECT_THAT(std::string(emulated.device->status().message()),
                ::testing::HasSubstr("for something else: the device has"));
  }
}

// An observer prevents overlap, but does not change results.
TEST(DeviceNetworkObserver, ReceivesEveryOperation) {
  EmulatedRank emulated = MakeEmulatedRank(Mode::kThreads);
  OneRank rank(kWindows, *emulated.kernels);
  const double loss = rank.Loss();
  CountingObserver observer;
  rank.network().set_observer(&observer);
  const int64_t waits = emulated.device->host_syncs();
  EXPECT_EQ(rank.Loss(), loss);
  // With the implied flatten: nine layers forward, the loss, eight layers backward; batch norm and
  // ReLU are one operation.
  EXPECT_GE(observer.ops(), 2 * rank.graph().size() - 4);
  EXPECT_GE(emulated.device->host_syncs() - waits, 2 * observer.ops());
}

TEST(DeviceNetworkListener, IsCalledForLossAndGradients) {
  EmulatedRank emulated = MakeEmulatedRank(Mode::kInline);
  OneRank rank(kTokens, *emulated.kernels);
  rank.Loss(rank.batch(), 1);
  EXPECT_EQ(rank.LossOfLastPass().samples, kSamples * 4);
  EXPECT_EQ(rank.loss_of_pass().backward(), 4) << "embed, norm, attention, fc";
}

}  // namespace
}  // namespace cadre
