// Shared by the tests of worker/nn: a network on one rank and any back end, and the loss of a pass.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/status.h"
#include "comm/transport/thread_transport.h"
#include "kernels/backend.h"
#include "plan/ownership.h"
#include "plan/recomputation.h"
#include "tests/base/expect.h"
#include "worker/nn/network.h"
#include "worker/nn/parameter_store.h"

namespace cadre::testing {

// Operations on images, with branches that join, and the flattening that a fully connected layer
// implies.
inline constexpr char kImages[] = R"(
  input { channels: 2 height: 6 width: 5 }
  layer { name: "conv" convolution { out_channels: 4 kernel: 3 padding: 1 groups: 2 } }
  layer { name: "bn" batch_norm {} }
  layer { name: "tanh" tanh {} }
  layer { name: "side" input: "bn" convolution { out_channels: 4 kernel_height: 1 kernel_width: 3 padding_width: 1 } }
  layer { name: "add" input: "tanh" input: "side" input: "tanh" add {} }
  layer { name: "lrn" local_response_norm { alpha: 0.3 } }
  layer { name: "concat" input: "lrn" input: "add" concat {} }
  layer { name: "pool" average_pool { kernel: 2 } }
  layer { name: "gelu" gelu {} }
  layer { name: "drop" dropout { rate: 0.25 } }
  layer { name: "fc1" fully_connected { out_features: 5 } }
  layer { name: "sigmoid" sigmoid {} }
  layer { name: "fc2" fully_connected { out_features: 4 no_bias: true } }
  layer { name: "loss" softmax_cross_entropy { label_smoothing: 0.1 } }
)";

// Operations that are fused (plan/fusion.cc): batch norms with ReLU and with additions, gradients
// that are added where outputs fork.
inline constexpr char kResiduals[] = R"(
  input { channels: 2 height: 8 width: 6 }
  layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 no_bias: true } }
  layer { name: "bn1" batch_norm {} }
  layer { name: "relu1" relu {} }
  layer { name: "conv2" convolution { out_channels: 4 kernel: 3 padding: 1 no_bias: true } }
  layer { name: "bn2" batch_norm {} }
  layer { name: "add2" input: "bn2" input: "relu1" add {} }
  layer { name: "relu2" relu {} }
  layer { name: "conv3" convolution { out_channels: 6 kernel: 3 padding: 1 stride: 2 no_bias: true } }
  layer { name: "bn3" batch_norm {} }
  layer { name: "projection" input: "relu2" convolution { out_channels: 6 kernel: 1 stride: 2 } }
  layer { name: "norm" batch_norm {} }
  layer { name: "add3" input: "bn3" input: "norm" add {} }
  layer { name: "relu3" relu {} }
  layer { name: "conv4" convolution { out_channels: 6 kernel: 1 } }
  layer { name: "bn4" batch_norm {} }
  layer { name: "add4" input: "bn4" input: "relu3" add {} }
  layer { name: "pool" global_average_pool {} }
  layer { name: "fc" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
)";

inline constexpr char kTokens[] = R"(
  tokens { length: 4 }
  layer { name: "embed" embedding { vocabulary: 5 features: 6 positions: true } }
  layer { name: "norm" layer_norm {} }
  layer { name: "attention" attention { heads: 3 causal: true } }
  layer { name: "add" input: "embed" input: "attention" add {} }
  layer { name: "fc" fully_connected { out_features: 5 } }
  layer { name: "loss" softmax_cross_entropy {} }
)";

// So many classes that GPUs pad the rows of their scores.
inline constexpr char kManyClasses[] = R"(
  tokens { length: 3 }
  layer { name: "embed" embedding { vocabulary: 515 features: 6 positions: true } }
  layer { name: "tanh" tanh {} }
  layer { name: "fc" fully_connected { out_features: 515 } }
  layer { name: "loss" softmax_cross_entropy { label_smoothing: 0.1 } }
)";

// So many scores that the host computes them in chunks.
inline constexpr char kManyScores[] = R"(
  tokens { length: 128 }
  layer { name: "embed" embedding { vocabulary: 66000 features: 4 positions: true } }
  layer { name: "tanh" tanh {} }
  layer { name: "fc" fully_connected { out_features: 66000 } }
  layer { name: "loss" softmax_cross_entropy { label_smoothing: 0.1 } }
)";
inline constexpr char kManyTiedScores[] = R"(
  tokens { length: 128 }
  layer { name: "embed" embedding { vocabulary: 66000 features: 4 } }
  layer { name: "tanh" tanh {} }
  layer { name: "fc" fully_connected { tied_to: "embed" no_bias: true } }
  layer { name: "loss" softmax_cross_entropy {} }
)";

// An encoder and a decoder of recurrent layers, with attention between them.
inline constexpr char kTranslation[] = R"(
  tokens { length: 7 }
  layer { name: "embed" embedding { vocabulary: 5 features: 6 positions: true } }
  layer { name: "norm" layer_norm {} }
  layer { name: "source" take_token { count: 4 } }
  layer { name: "target" input: "norm" take_token { token: 4 count: 3 } }
  layer { name: "forward" input: "source" lstm { hidden: 3 } }
  layer { name: "backward" input: "source" lstm { hidden: 2 reverse: true } }
  layer { name: "encoder" input: "forward" input: "backward" concat {} }
  layer { name: "decoder" input: "target" lstm { hidden: 7 projection: 5 } }
  layer { name: "context" input: "decoder" input: "encoder" dot_product_attention {} }
  layer { name: "concat" input: "decoder" input: "context" concat {} }
  layer { name: "last" lstm { hidden: 4 projection: 3 reverse: true } }
  layer { name: "fc" fully_connected { out_features: 5 } }
  layer { name: "loss" softmax_cross_entropy {} }
)";

// A loss that samples classes.
inline constexpr char kSampled[] = R"(
  tokens { length: 4 }
  layer { name: "embed" embedding { vocabulary: 9 features: 6 positions: true } }
  layer { name: "lstm" lstm { hidden: 5 } }
  layer { name: "fc" fully_connected { out_features: 9 } }
  layer { name: "loss" softmax_cross_entropy { sampling { classes: 4 } } }
)";

// The same with one table for the first and the last layer.
inline constexpr char kSampledTied[] = R"(
  tokens { length: 4 }
  layer { name: "embed" embedding { vocabulary: 9 features: 6 positions: true } }
  layer { name: "lstm" lstm { hidden: 6 } }
  layer { name: "fc" fully_connected { tied_to: "embed" no_bias: true } }
  layer { name: "loss" softmax_cross_entropy { sampling { classes: 4 } } }
)";

inline constexpr int64_t kSamples = 3;

// The Euclidean distance from the expected values, relative to their norm.
inline double RelativeDistance(const std::vector<float>& found,
                               const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double squares = 0;
  double distance = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    squares += std::pow(expected[i], 2);
    distance += std::pow(found[i] - expected[i], 2);
  }
  return std::sqrt(distance / squares);
}

// Fills the inputs and labels of a batch: those of the rows given.
inline void FillBatch(const Graph& graph, Interval input_rows, Interval label_rows,
                      std::vector<float>& inputs, std::vector<int32_t>& labels) {
  const int64_t elements = graph.input().elements();
  for (int64_t i = input_rows.begin * elements; i < input_rows.end * elements; ++i) {
    inputs.push_back(graph.takes_tokens() ? RandomBits(1, RandomStream::kTest, 0, i) % 5
                                          : RandomNormal(1, RandomStream::kTest, 0, i));
  }
  const int64_t per_sample = graph.labels_per_sample();
  for (int64_t i = label_rows.begin * per_sample; i < label_rows.end * per_sample; ++i) {
    labels.push_back(i * 7 % graph.classes());
  }
}

// A listener that keeps the loss of the latest pass of a network.
class LossOfPass final : public PassListener {
 public:
  explicit LossOfPass(Device& device) : device_(device) {}
  absl::Status BeforeForward(int /*layer*/) override { return absl::OkStatus(); }
  absl::Status AfterLoss(std::span<const double> sums, int64_t counted) override {
    sums_ = sums;
    counted_ = counted;
    return absl::OkStatus();
  }
  absl::Status AfterBackward(int /*layer*/) override {
    ++backward_;
    return absl::OkStatus();
  }

  // Blocks. Returns zeros if another rank counts the labels.
  LossPart Get() const {
    if (counted_ == 0) return {};
    double sums[2] = {};
    EXPECT_TRUE(device_.CopyOut(sums_.data(), sums, sizeof(sums)).ok());
    LossPart part{.loss = sums[0], .samples = counted_};
    part.correct = sums[1];
    return part;
  }
  // Number of calls of AfterBackward.
  int backward() const { return backward_; }

 private:
  Device& device_;
  std::span<const double> sums_;
  int64_t counted_ = 0;
  int backward_ = 0;
};

// Forward and backward of the loaded batch.
inline absl::Status PlayLoaded(Network& network, int64_t samples, float loss_scale) {
  const PassOrder order(/*micro_batches=*/1);
  network.BeginStep(order, {&samples, 1});
  CADRE_RETURN_IF_ERROR(network.PlayForward(0, loss_scale, /*share=*/1));
  CADRE_RETURN_IF_ERROR(network.PlayBackward(0));
  return network.EndStep();
}

// Counts the operations that a network plays.
class CountingObserver final : public TapeObserver {
 public:
  void Played(const Tape& /*tape*/, const TapeOp& /*op*/, absl::Time /*begin*/,
              double seconds) override {
    ++ops_;
    EXPECT_GE(seconds, 0);
  }
  int64_t ops() const { return ops_; }

 private:
  int64_t ops_ = 0;
};

// Divisions of a model's layers into blocks that are recomputed.
inline std::vector<std::vector<Interval>> BlocksOf(const Graph& graph) {
  const int64_t layers = graph.size() - 1;
  std::vector<std::vector<Interval>> divisions = {RecomputationBlocks(graph), {{0, layers}}};
  for (const int64_t size : {1, 2, 3, 5}) {
    divisions.emplace_back();
    for (int64_t l = 0; l < layers; l += size) {
      divisions.back().push_back({l, std::min(l + size, layers)});
    }
  }
  // Others are not recomputed.
  divisions.push_back({{1, 4}, {5, layers - 1}});
  return divisions;
}

class OneRank {
 public:
  // On the reference back end.
  explicit OneRank(const char* model) : OneRank(model, nullptr, MakeReferenceBackend()) {}
  // Borrows the kernels. `recomputed`: as in Plan.
  OneRank(const char* model, Backend& kernels, std::vector<Interval> recomputed = {})
      : OneRank(model, &kernels, nullptr, std::move(recomputed)) {}

  const Graph& graph() const { return graph_; }
  const ParameterIndex& index() const { return index_; }
  Backend& kernels() { return kernels_; }
  Network& network() { return *network_; }
  ParameterStore& store() { return *store_; }
  std::vector<float>& inputs() { return inputs_; }
  BatchView batch() const { return {kSamples, inputs_, labels_, /*first_position=*/7}; }
  float loss_scale() const { return 1.0F / (kSamples * graph_.labels_per_sample()); }

  // The mean loss of the batch per label.
  double Loss() { return Loss(batch(), loss_scale()) * loss_scale(); }
  double Loss(const BatchView& batch, float scale) {
    const absl::Status played = network_->ForwardBackward(batch, scale, 1);
    EXPECT_TRUE(played.ok()) << played;
    return LossOfLastPass().loss;
  }
  const LossOfPass& loss_of_pass() const { return loss_of_pass_; }
  LossPart LossOfLastPass() const { return loss_of_pass_.Get(); }

  // The weights of a parameter, in device memory.
  std::span<float> Weights(const std::string& name) {
    const Parameter& parameter = index_[*index_.Find(name)];
    return store_->OfLayer(index_, parameter.layer)[parameter.number].value;
  }

  // Copies between device and host memory.
  std::vector<float> Read(std::span<const float> values) {
    std::vector<float> read(values.size());
    const absl::Status status =
        kernels_.device().CopyOut(values.data(), read.data(), values.size_bytes());
    EXPECT_TRUE(status.ok()) << status;
    return read;
  }
  void Write(const std::vector<float>& values, std::span<float> to) {
    kernels_.device().CopyIn(values.data(), to.data(), to.size_bytes());
    kernels_.WeightsChanged(to);
  }

 private:
  OneRank(const char* model, Backend* kernels, std::unique_ptr<Backend> owned,
          std::vector<Interval> recomputed = {})
      : owned_(std::move(owned)), kernels_(kernels == nullptr ? *owned_ : *kernels) {
    auto graph = Graph::FromModel(Parse<v1::Model>(model));
    EXPECT_TRUE(graph.ok()) << graph.status();
    graph_ = *std::move(graph);
    index_ = ParameterIndex::FromGraph(graph_);
    for (const GraphLayer& layer : graph_.layers()) {
      plan_.layers.push_back(*LayOut(layer, plan_.mesh, {}));
    }
    plan_.buckets = MakeBuckets(plan_.layers, plan_.mesh, index_);
    plan_.recomputed = std::move(recomputed);
    comms_ = std::make_unique<MeshCommunicators>(*transports_[0], plan_.mesh);
    store_ = std::make_unique<ParameterStore>(index_, OwnershipOf(plan_, index_, 0), 3, kernels_);
    network_ = std::make_unique<Network>(graph_, index_, plan_, 3, kernels_, *store_, *comms_);
    network_->set_listener(&loss_of_pass_);
    // Layer norm is steep at rows close to zero, so the embedding is scaled to the order of one.
    if (graph_.takes_tokens()) {
      for (const char* name : {"embed/weight", "embed/positions"}) {
        if (!index_.Find(name).ok()) continue;
        std::vector<float> values = Read(Weights(name));
        for (float& value : values) value *= 30;
        Write(values, Weights(name));
      }
    }
    FillBatch(graph_, {0, kSamples}, {0, kSamples}, inputs_, labels_);
  }

  const std::unique_ptr<Backend> owned_;
  Backend& kernels_;
  std::vector<std::unique_ptr<Transport>> transports_ = MakeThreadTransports(1, absl::Seconds(1));
  Graph graph_;
  ParameterIndex index_;
  Plan plan_;
  std::unique_ptr<MeshCommunicators> comms_;
  std::unique_ptr<ParameterStore> store_;
  LossOfPass loss_of_pass_{kernels_.device()};
  std::unique_ptr<Network> network_;
  std::vector<float> inputs_;
  std::vector<int32_t> labels_;
};

}  // namespace cadre::testing
