#include "worker/nn/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/class_sampler.h"
#include "plan/layer_memory.h"
#include "tests/base/expect.h"
#include "tests/worker/nn/one_rank.h"

namespace cadre {
namespace {

using testing::kImages;
using testing::kResiduals;
using testing::kSampled;
using testing::kSampledTied;
using testing::kSamples;
using testing::kTokens;
using testing::kTranslation;
using testing::OneRank;

class NetworkGradients : public ::testing::TestWithParam<const char*> {};

// The gradients equal the slopes of the loss.
TEST_P(NetworkGradients, EqualDifferenceQuotients) {
  OneRank rank(GetParam());
  rank.Loss();
  for (int b = 0; b < rank.store().buckets(); ++b) {
    const std::span<float> weights = rank.store().weights(b);
    const std::vector<float> gradients(rank.store().gradients(b).begin(),
                                       rank.store().gradients(b).end());
    for (const LocalParameter& local : rank.store().ownership(b).parameters) {
      const Parameter& parameter = rank.index()[local.parameter];
      if (IsStatistic(parameter.role)) continue;
      for (int64_t i = local.offset; i < local.offset + local.size(); i += 5) {
        // Central differences of an fp32 forward have an error of about h^2 + 2^-24 / h, lowest
        // near 2^-8.
        const float h = 0x1.0p-8F;
        float& weight = weights[i];
        const float kept = weight;
        weight = kept + h;
        const double above = rank.Loss();
        weight = kept - h;
        const double below = rank.Loss();
        weight = kept;
        EXPECT_NEAR(gradients[i], (above - below) / (2 * h), 1e-3)
            << parameter.name << " " << i - local.offset;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, NetworkGradients,
                         ::testing::Values(kImages, kTokens, kTranslation, kSampled, kSampledTied));

// Back ends that exist in two precisions.
class NetworkFusion : public ::testing::TestWithParam<Precision> {
 protected:
  // Empty if this processor lacks the precision.
  std::unique_ptr<Backend> Make() const {
    std::unique_ptr<Backend> kernels = MakeCpuBackend(/*threads=*/2);
    if (!kernels->SetPrecision(GetParam()).ok()) return nullptr;
    return kernels;
  }
};

INSTANTIATE_TEST_SUITE_P(Precisions, NetworkFusion,
                         ::testing::Values(Precision::kFp32, Precision::kBf16));

TEST_P(NetworkFusion, KeepsBits) {
  for (const char* model : {kImages, kResiduals}) {
    const std::unique_ptr<Backend> first = Make(), second = Make();
    if (first == nullptr) GTEST_SKIP() << "the processor lacks AVX512_BF16";
    OneRank fused(model, *first), separate(model, *second);
    separate.network().set_fusion(Fusion::kOff);
    EXPECT_EQ(fused.Loss(), separate.Loss());
    for (int b = 0; b < fused.store().buckets(); ++b) {
      EXPECT_THAT(fused.store().gradients(b),
                  ::testing::ElementsAreArray(separate.store().gradients(b)));
    }
    EXPECT_EQ(fused.network().Evaluate(fused.batch())->loss,
              separate.network().Evaluate(separate.batch())->loss);
  }
}

TEST_P(NetworkFusion, RecomputationKeepsBits) {
  for (const char* model : {kImages, kResiduals, kTokens, kTranslation, kSampled, kSampledTied}) {
    for (const Fusion fusion : {Fusion::kOff, Fusion::kHost}) {
      const std::unique_ptr<Backend> kernels = Make();
      if (kernels == nullptr) GTEST_SKIP() << "the processor lacks AVX512_BF16";
      OneRank whole(model, *kernels);
      whole.network().set_fusion(fusion);
      const double loss = whole.Loss();
      for (const std::vector<Interval>& blocks : testing::BlocksOf(whole.graph())) {
        OneRank recomputing(model, *kernels, blocks);
        recomputing.network().set_fusion(fusion);
        // Twice, because a pass must not change what the next one reads.
        EXPECT_EQ(recomputing.Loss(), loss);
        EXPECT_EQ(recomputing.Loss(), loss);
        for (int b = 0; b < whole.store().buckets(); ++b) {
          EXPECT_THAT(recomputing.store().gradients(b),
                      ::testing::ElementsAreArray(whole.store().gradients(b)))
              << model << blocks.size() << " blocks";
        }
        EXPECT_EQ(recomputing.loss_of_pass().backward(), 2 * whole.loss_of_pass().backward());
      }
    }
  }
}

TEST_P(NetworkFusion, ScoresInChunksGiveTheSame) {
  for (const char* model : {testing::kManyScores, testing::kManyTiedScores}) {
    const std::unique_ptr<Backend> first = Make(), second = Make();
    if (first == nullptr) GTEST_SKIP() << "the processor lacks AVX512_BF16";
    OneRank chunks(model, *first), whole(model, *second);
    whole.network().set_fusion(Fusion::kOff);
    const double loss = whole.Loss();
    EXPECT_NEAR(chunks.Loss(), loss, 1e-9 * loss) << "products may round scores differently";
    EXPECT_EQ(chunks.LossOfLastPass().correct, whole.LossOfLastPass().correct);
    EXPECT_EQ(chunks.loss_of_pass().backward(), whole.loss_of_pass().backward());
    for (int b = 0; b < whole.store().buckets(); ++b) {
      const auto gradients = [b](OneRank& rank) {
        return std::vector<float>(rank.store().gradients(b).begin(),
                                  rank.store().gradients(b).end());
      };
      EXPECT_LT(testing::RelativeDistance(gradients(chunks), gradients(whole)), 1e-6);
    }
    EXPECT_NEAR(chunks.network().Evaluate(chunks.batch())->loss,
                whole.network().Evaluate(whole.batch())->loss, 1e-9 * loss / whole.loss_scale());
    const int64_t scores = kSamples * 128 * 66'000 * SizeOf(first->activation_type());
    EXPECT_LT(chunks.network().activation_bytes(), kMaxScoreBytes + scores / 20);
    EXPECT_GT(whole.network().activation_bytes(), scores);
  }
}

// The observer of a step learns how long the layer took, and how long the loss.
TEST(Network, ScoresInChunksAreObservedAsOperationsOfTheirLayer) {
  class KindsOfLayers final : public TapeObserver {
   public:
    void Played(const Tape& /*tape*/, const TapeOp& op, absl::Time /*begin*/,
                double seconds) override {
      if (seconds > 0) kinds.emplace(op.layer, op.kind);
    }
    std::multiset<std::pair<int, TapeOpKind>> kinds;
  };
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(/*threads=*/2);
  OneRank rank(testing::kManyScores, *kernels);
  KindsOfLayers observer;
  rank.network().set_observer(&observer);
  rank.Loss();
  rank.network().set_observer(nullptr);
  for (const auto& each :
       {std::pair(2, TapeOpKind::kForward), {2, TapeOpKind::kBackward}, {3, TapeOpKind::kLoss}}) {
    EXPECT_GE(observer.kinds.count(each), 1U) << each.first;
  }
}

TEST(Network, EvaluationUsesRunningStatisticsAndKeepsGradients) {
  OneRank rank(kImages);
  rank.Loss();
  const std::vector<float> before(rank.store().gradients(0).begin(),
                                  rank.store().gradients(0).end());
  const auto first = rank.network().Evaluate(rank.batch());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->samples, kSamples);
  rank.Weights("bn/mean")[0] += 1.0F;
  const auto second = rank.network().Evaluate(rank.batch());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(first->loss, second->loss);
  EXPECT_THAT(rank.store().gradients(0), ::testing::ElementsAreArray(before));
}

TEST(Network, DropoutDependsOnPositionAndIsOffInEvaluation) {
  OneRank rank(kImages);
  BatchView batch = rank.batch();
  const double first = rank.Loss(batch, 1);
  EXPECT_EQ(rank.Loss(batch, 1), first);
  const double evaluated = rank.network().Evaluate(batch)->loss;
  batch.first_position += kSamples;
  EXPECT_NE(rank.Loss(batch, 1), first);
  EXPECT_EQ(rank.network().Evaluate(batch)->loss, evaluated);
}

// kSampled with another sample; an empty one: without sampling.
std::string WithSampling(const std::string& sampling) {
  return absl::StrReplaceAll(kSampled, {{"sampling { classes: 4 }", sampling}});
}

// Without the terms of features, the scores are the biases.
TEST(Network, SampledLossFollowsTheDefinition) {
  for (const char* distribution : {"LOG_UNIFORM", "UNIFORM"}) {
    const std::string model =
        WithSampling(absl::StrCat("sampling { classes: 4 distribution: ", distribution, " }"));
    OneRank rank(model.c_str());
    const std::span<float> weight = rank.Weights("fc/weight"), bias = rank.Weights("fc/bias");
    std::ranges::fill(weight, 0.0F);
    for (size_t c = 0; c < bias.size(); ++c) bias[c] = 0.5F * std::sin(3.0F * c);
    const BatchView batch = rank.batch();
    const v1::ClassSampling& sampling =
        rank.graph().layers().back().settings.softmax_cross_entropy().sampling();
    const ClassSampler sampler(sampling, 9, /*seed=*/3);
    const std::vector<int64_t> drawn = sampler.Draw(batch.first_position);
    double want = 0;
    int64_t hits = 0;
    for (const int32_t label : batch.labels) {
      const auto term = [&](int64_t c) { return std::exp(bias[c]) / sampler.Probability(c); };
      double sum = term(label);
      for (const int64_t c : drawn) c == label ? ++hits : sum += term(c);
      want -= std::log(term(label) / sum);
    }
    EXPECT_GT(hits, 0) << "some label must be sampled";
    EXPECT_NEAR(rank.Loss(batch, 1), want, 1e-5);
  }
}

TEST(Network, SampleOfAllClassesGivesTheFullLoss) {
  for (const char* distribution : {"LOG_UNIFORM", "UNIFORM"}) {
    OneRank full(WithSampling("").c_str());
    OneRank sampled(
        WithSampling(absl::StrCat("sampling { classes: 9 distribution: ", distribution, " }"))
            .c_str());
    EXPECT_NEAR(sampled.Loss(), full.Loss(), 1e-6);
    for (int b = 0; b < full.store().buckets(); ++b) {
      EXPECT_THAT(sampled.store().gradients(b),
                  ::testing::Pointwise(::testing::FloatNear(1e-6), full.store().gradients(b)));
    }
  }
}

TEST(Network, EvaluationUsesAllClasses) {
  OneRank full(WithSampling("").c_str()), sampled(kSampled);
  BatchView batch = sampled.batch();
  const double first = sampled.Loss(batch, 1);
  EXPECT_EQ(sampled.network().Evaluate(batch)->loss, full.network().Evaluate(batch)->loss);
  EXPECT_EQ(sampled.Loss(batch, 1), first);
  batch.first_position += kSamples;
  EXPECT_NE(sampled.Loss(batch, 1), first);
}

TEST(Network, MicroBatchesOfAStepShareTheSample) {
  OneRank rank(kSampled);
  BatchView batch = rank.batch();
  const double first = rank.Loss(batch, 1);
  batch.first_position += kSamples;
  batch.first_in_step = kSamples;
  EXPECT_EQ(rank.Loss(batch, 1), first);
}

// The rows of classes that are neither sampled nor labels.
TEST(Network, OtherClassesHaveGradientZero) {
  OneRank rank(WithSampling("sampling { classes: 1 }").c_str());
  BatchView batch = rank.batch();
  const std::vector<int32_t> labels(batch.labels.size(), 8);
  batch.labels = labels;
  rank.Loss(batch, 1);
  const Parameter& weight = rank.index()[*rank.index().Find("fc/weight")];
  const std::span<float> gradient =
      rank.store().OfLayer(rank.index(), weight.layer)[weight.number].gradient;
  int changed = 0;
  for (int64_t c = 0; c < 9; ++c) {
    const auto row = gradient.subspan(c * 5, 5);
    if (std::ranges::any_of(row, [](float value) { return value != 0; })) ++changed;
  }
  EXPECT_EQ(changed, 2);
}

TEST(Network, FindsFirstNonFiniteLayer) {
  OneRank rank(kImages);
  EXPECT_EQ(*rank.network().FirstNotFinite(rank.batch()), rank.graph().size());
  rank.Weights("side/weight")[0] = std::numeric_limits<float>::infinity();
  const int first = *rank.network().FirstNotFinite(rank.batch());
  EXPECT_EQ(rank.graph()[first].name, "side");
  rank.inputs()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(rank.graph()[*rank.network().FirstNotFinite(rank.batch())].name, "conv");
}

TEST(Network, FindsNonFiniteScoresInChunks) {
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(/*threads=*/2);
  OneRank rank(testing::kManyScores, *kernels);
  EXPECT_EQ(*rank.network().FirstNotFinite(rank.batch()), rank.graph().size());
  rank.Weights("fc/bias")[65'999] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rank.graph()[*rank.network().FirstNotFinite(rank.batch())].name, "fc");
}

TEST(Network, RejectsTokensOutsideTheVocabulary) {
  OneRank rank(kTokens);
  for (const float token : {5.0F, -1.0F, 0.5F, std::numeric_limits<float>::quiet_NaN()}) {
    rank.inputs()[2] = token;
    const auto status = rank.network().Evaluate(rank.batch()).status();
    EXPECT_THAT(status, IsError(absl::StatusCode::kInvalidArgument, "layer 'embed'"));
  }
}

// A rank may have no samples.
TEST(Network, AcceptsEmptyBatch) {
  for (const char* model : {kImages, kTranslation, kSampled}) {
    OneRank rank(model);
    for (int b = 0; b < rank.store().buckets(); ++b) {
      std::ranges::fill(rank.store().gradients(b), std::numeric_limits<float>::quiet_NaN());
    }
    const absl::Status played = rank.network().ForwardBackward({.samples = 0}, 1, 1);
    ASSERT_TRUE(played.ok()) << played;
    EXPECT_EQ(rank.LossOfLastPass().samples, 0);
    EXPECT_EQ(rank.LossOfLastPass().loss, 0);
    for (int b = 0; b < rank.store().buckets(); ++b) {
      EXPECT_THAT(rank.store().gradients(b), ::testing::Each(0.0F));
    }
  }
}

class RefusesForward final : public PassListener {
 public:
  absl::Status BeforeForward(int /*layer*/) override { return absl::InternalError("refused"); }
  absl::Status AfterLoss(std::span<const double> /*sums*/, int64_t /*counted*/) override {
    return absl::OkStatus();
  }
  absl::Status AfterBackward(int /*layer*/) override { return absl::OkStatus(); }
};

// Its message will never be sent, so the other ranks must not wait for this one.
TEST(Network, LeavesTheGroupIfItIsDestroyedWhileItReceives) {
  const Graph graph = *Graph::FromModel(Parse<v1::Model>(R"(
    input { channels: 2 height: 1 width: 1 }
    layer { name: "a" fully_connected { out_features: 2 } }
    layer { name: "b" fully_connected { out_features: 2 } }
    layer { name: "c" fully_connected { out_features: 2 } }
    layer { name: "loss" softmax_cross_entropy {} }
  )"));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  Plan plan{.mesh = Mesh({{"axis", 2}})};
  for (const GraphLayer& layer : graph.layers()) {
    const int coordinate = layer.name == "b" ? 1 : 0;
    plan.layers.push_back(*LayOut(layer, plan.mesh, {}, {{"axis", coordinate}}));
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, index);
  const auto transports = MakeThreadTransports(2, absl::Seconds(60));
  const std::unique_ptr<Backend> kernels = MakeReferenceBackend();
  MeshCommunicators comms(*transports[0], plan.mesh);
  ParameterStore store(index, OwnershipOf(plan, index, 0), 3, *kernels);
  {
    Network network(graph, index, plan, 3, *kernels, store, comms);
    RefusesForward listener;
    network.set_listener(&listener);
    const std::vector<float> inputs = {1, 2};
    const std::vector<int32_t> labels = {0};
    const absl::Status status =
        network.ForwardBackward({.samples = 1, .inputs = inputs, .labels = labels}, 1, 1);
    EXPECT_EQ(status.message(), "refused");
    EXPECT_TRUE(transports[0]->status().ok());
  }
  EXPECT_EQ(transports[0]->status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace cadre
