#include "worker/nn/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/time/time.h"
#include "base/random.h"
#include "google/protobuf/text_format.h"
#include "spec/memory.h"
#include "worker/transport/thread_transport.h"

namespace cadre {
namespace {

// Every operation on images, branches that join, and the flattening that a fully connected layer
// implies.
constexpr char kImages[] = R"pb(
  input { channels: 2 height: 6 width: 5 }
  layer {
    name: "conv"
    convolution { out_channels: 4 kernel: 3 padding: 1 groups: 2 }
  }
  layer {
    name: "bn"
    batch_norm {}
  }
  layer {
    name: "tanh"
    tanh {}
  }
  layer {
    name: "side"
    input: "bn"
    convolution { out_channels: 4 kernel_height: 1 kernel_width: 3 padding_width: 1 }
  }
  layer {
    name: "add"
    input: "tanh"
    input: "side"
    input: "tanh"
    add {}
  }
  layer {
    name: "lrn"
    local_response_norm { alpha: 0.3 }
  }
  layer {
    name: "concat"
    input: "lrn"
    input: "add"
    concat {}
  }
  layer {
    name: "pool"
    average_pool { kernel: 2 }
  }
  layer {
    name: "gelu"
    gelu {}
  }
  layer {
    name: "drop"
    dropout { rate: 0.25 }
  }
  layer {
    name: "fc1"
    fully_connected { out_features: 5 }
  }
  layer {
    name: "sigmoid"
    sigmoid {}
  }
  layer {
    name: "fc2"
    fully_connected { out_features: 4 no_bias: true }
  }
  layer {
    name: "loss"
    softmax_cross_entropy { label_smoothing: 0.1 }
  }
)pb";

constexpr char kTokens[] = R"pb(
  tokens { length: 4 }
  layer {
    name: "embed"
    embedding { vocabulary: 5 features: 6 positions: true }
  }
  layer {
    name: "norm"
    layer_norm {}
  }
  layer {
    name: "attention"
    attention { heads: 3 causal: true }
  }
  layer {
    name: "add"
    input: "embed"
    input: "attention"
    add {}
  }
  layer {
    name: "fc"
    fully_connected { out_features: 5 }
  }
  layer {
    name: "loss"
    softmax_cross_entropy {}
  }
)pb";

constexpr int64_t kSamples = 3;

// One rank, everything local.
class OneRank {
 public:
  explicit OneRank(const char* model) {
    v1::Model parsed;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(model, &parsed));
    auto graph = Graph::FromModel(parsed);
    EXPECT_TRUE(graph.ok()) << graph.status();
    graph_ = *std::move(graph);
    index_ = ParameterIndex::FromGraph(graph_);
    for (const GraphLayer& layer : graph_.layers()) {
      plan_.layers.push_back(*LayOut(layer, plan_.mesh, {}));
    }
    plan_.buckets = MakeBuckets(plan_.layers, plan_.mesh, index_);
    comms_ = std::make_unique<MeshCommunicators>(*transports_[0], plan_.mesh);
    store_ = std::make_unique<ParameterStore>(index_, OwnershipOf(plan_, index_, 0), 3);
    network_ = std::make_unique<Network>(graph_, index_, plan_, 3, *kernels_, *store_, *comms_);
    // Layer norm of rows that are all but zero is steep; these are of the size of one.
    if (graph_.takes_tokens()) {
      for (const char* name : {"embed/weight", "embed/positions"}) {
        for (float& value : Weights(name)) value *= 30;
      }
    }
    MakeBatch();
  }

  const Graph& graph() const { return graph_; }
  const ParameterIndex& index() const { return index_; }
  Network& network() { return *network_; }
  ParameterStore& store() { return *store_; }
  std::vector<float>& inputs() { return inputs_; }
  BatchView batch() const { return {kSamples, inputs_, labels_, /*first_position=*/7}; }
  float loss_scale() const {
    return 1.0F / static_cast<float>(kSamples * graph_.labels_per_sample());
  }

  double Loss() {
    auto part = network_->ForwardBackward(batch(), loss_scale(), 1);
    EXPECT_TRUE(part.ok()) << part.status();
    return part.ok() ? part->loss * static_cast<double>(loss_scale()) : 0;
  }

  // Bucket and place of a parameter's first element.
  std::span<float> Weights(const std::string& name) {
    const int wanted = *index_.Find(name);
    const std::vector<LocalTensor> tensors = store_->OfLayer(index_, index_[wanted].layer);
    return tensors[static_cast<size_t>(index_[wanted].number)].value;
  }

 private:
  void MakeBatch() {
    const int64_t elements = kSamples * graph_.input().elements();
    for (int64_t i = 0; i < elements; ++i) {
      const auto at = static_cast<uint64_t>(i);
      inputs_.push_back(graph_.takes_tokens()
                            ? static_cast<float>(RandomBits(1, RandomStream::kTest, 0, at) % 5)
                            : RandomNormal(1, RandomStream::kTest, 0, at));
    }
    for (int64_t i = 0; i < kSamples * graph_.labels_per_sample(); ++i) {
      labels_.push_back(static_cast<int32_t>(i * 7 % graph_.classes()));
    }
  }

  std::vector<std::unique_ptr<Transport>> transports_ = MakeThreadTransports(1, absl::Seconds(1));
  std::unique_ptr<Kernels> kernels_ = MakeReferenceKernels();
  Graph graph_;
  ParameterIndex index_;
  Plan plan_;
  std::unique_ptr<MeshCommunicators> comms_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Network> network_;
  std::vector<float> inputs_;
  std::vector<int32_t> labels_;
};

class Slopes : public testing::TestWithParam<const char*> {};

// The gradient that comes out is the slope of the loss that comes out, for every parameter.
TEST_P(Slopes, AreTheGradients) {
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
        // Central differences of an fp32 forward: error about h^2 + 2^-24 / h, best near 2^-8.
        const float h = 0x1.0p-8F;
        float& weight = weights[static_cast<size_t>(i)];
        const float kept = weight;
        weight = kept + h;
        const double above = rank.Loss();
        weight = kept - h;
        const double below = rank.Loss();
        weight = kept;
        EXPECT_NEAR(gradients[static_cast<size_t>(i)], (above - below) / (2 * h), 1e-3)
            << parameter.name << " " << i - local.offset;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Slopes, testing::Values(kImages, kTokens));

TEST(Network, EvaluateUsesRunningStatisticsAndLeavesGradientsAlone) {
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
  EXPECT_THAT(rank.store().gradients(0), testing::ElementsAreArray(before));
}

TEST(Network, DropsByPositionAndNotInEvaluation) {
  OneRank rank(kImages);
  BatchView batch = rank.batch();
  const double first = rank.network().ForwardBackward(batch, 1, 1)->loss;
  EXPECT_EQ(rank.network().ForwardBackward(batch, 1, 1)->loss, first);
  const double evaluated = rank.network().Evaluate(batch)->loss;
  batch.first_position += kSamples;
  EXPECT_NE(rank.network().ForwardBackward(batch, 1, 1)->loss, first);
  EXPECT_EQ(rank.network().Evaluate(batch)->loss, evaluated);
}

TEST(Network, FindsTheFirstLayerThatIsNotFinite) {
  OneRank rank(kImages);
  EXPECT_EQ(*rank.network().FirstNotFinite(rank.batch()), rank.graph().size());
  rank.Weights("side/weight")[0] = std::numeric_limits<float>::infinity();
  const int first = *rank.network().FirstNotFinite(rank.batch());
  EXPECT_EQ(rank.graph()[first].name, "side");
  rank.inputs()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(rank.graph()[*rank.network().FirstNotFinite(rank.batch())].name, "conv");
}

TEST(Network, RefusesTokensThatTheVocabularyDoesNotHave) {
  OneRank rank(kTokens);
  for (const float token : {5.0F, -1.0F, 0.5F, std::numeric_limits<float>::quiet_NaN()}) {
    rank.inputs()[2] = token;
    const auto status = rank.network().Evaluate(rank.batch()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("layer 'embed'"));
  }
}

// A batch of nothing is legal: a rank may have no samples.
TEST(Network, TakesABatchOfNothing) {
  OneRank rank(kImages);
  const auto part = rank.network().ForwardBackward({.samples = 0}, 1, 1);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->samples, 0);
  EXPECT_EQ(part->loss, 0);
}

}  // namespace
}  // namespace cadre
