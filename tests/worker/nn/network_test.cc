#include "worker/nn/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "absl/time/time.h"
#include "base/random.h"
#include "coordinator/plan/planner.h"
#include "google/protobuf/text_format.h"
#include "worker/comm/thread_transport.h"

namespace cadre {
namespace {

v1::RunSpec Spec() {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        model {
          input { channels: 1 height: 6 width: 6 }
          layer {
            name: "conv"
            convolution { out_channels: 3 kernel: 3 padding: 1 }
          }
          layer {
            name: "pool"
            average_pool { kernel: 2 }
          }
          layer {
            name: "fc1"
            fully_connected { out_features: 5 }
          }
          layer {
            name: "relu"
            relu {}
          }
          layer {
            name: "fc2"
            fully_connected { out_features: 4 }
          }
          layer {
            name: "loss"
            softmax_cross_entropy {}
          }
        }
      )pb",
      &spec));
  return spec;
}

// One rank, everything local.
class OneRank {
 public:
  OneRank() {
    const v1::RunSpec spec = Spec();
    graph_ = *Graph::FromModel(spec.model());
    index_ = *ParameterIndex::FromModel(spec.model());
    plan_ = *PlanFromProto(*MakePlan(spec, 1), index_);
    comms_ = std::make_unique<MeshCommunicators>(*transports_[0], plan_.mesh);
    store_ = std::make_unique<ParameterStore>(index_, OwnershipOf(plan_, index_, 0), 3);
    network_ = *Network::Make(graph_, index_, plan_, *kernels_, *store_, *comms_);
  }

  Network& network() { return *network_; }
  ParameterStore& store() { return *store_; }

 private:
  std::vector<std::unique_ptr<Transport>> transports_ = MakeThreadTransports(1, absl::Seconds(1));
  std::unique_ptr<Kernels> kernels_ = MakeReferenceKernels();
  Graph graph_;
  ParameterIndex index_;
  Plan plan_;
  std::unique_ptr<MeshCommunicators> comms_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Network> network_;
};

constexpr int64_t kSamples = 3;

std::vector<float> Images() {
  std::vector<float> images(kSamples * 36);
  for (size_t i = 0; i < images.size(); ++i) {
    images[i] = RandomNormal(1, RandomStream::kTest, 0, i);
  }
  return images;
}

// The gradient that comes out is the slope of the loss that comes out, for every parameter.
TEST(Network, GradientIsTheSlopeOfTheLoss) {
  OneRank rank;
  const std::vector<float> images = Images();
  const std::vector<int32_t> labels = {2, 0, 3};
  const auto loss = [&] {
    auto part = rank.network().ForwardBackward(kSamples, images, labels);
    EXPECT_TRUE(part.ok()) << part.status();
    return part->loss / kSamples;
  };
  loss();
  for (int b = 0; b < rank.store().buckets(); ++b) {
    const std::span<float> weights = rank.store().weights(b);
    const std::vector<float> gradients(rank.store().gradients(b).begin(),
                                       rank.store().gradients(b).end());
    for (size_t i = 0; i < weights.size(); i += 7) {
      // Central differences of an fp32 forward: error about h^2 + 2^-24 / h, best near h = 2^-8.
      const float h = 0x1.0p-8F;
      const float kept = weights[i];
      weights[i] = kept + h;
      const double above = loss();
      weights[i] = kept - h;
      const double below = loss();
      weights[i] = kept;
      EXPECT_NEAR(gradients[i], (above - below) / (2 * h), 2e-3) << "bucket " << b << ", " << i;
    }
  }
}

TEST(Network, EvaluateLeavesGradientsAloneAndAgreesOnTheLoss) {
  OneRank rank;
  const std::vector<float> images = Images();
  const std::vector<int32_t> labels = {2, 0, 3};
  const LossPart trained = *rank.network().ForwardBackward(kSamples, images, labels);
  rank.store().gradients(0)[0] = 42;
  const LossPart evaluated = *rank.network().Evaluate(kSamples, images, labels);
  EXPECT_EQ(trained.loss, evaluated.loss);
  EXPECT_EQ(trained.correct, evaluated.correct);
  EXPECT_EQ(evaluated.samples, kSamples);
  EXPECT_EQ(rank.store().gradients(0)[0], 42);
}

TEST(Network, BatchSizesMayChange) {
  OneRank rank;
  const std::vector<float> images = Images();
  const std::vector<int32_t> labels = {2, 0, 3};
  const LossPart all = *rank.network().Evaluate(kSamples, images, labels);
  double one_by_one = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    one_by_one +=
        rank.network()
            .Evaluate(1, std::span(images).subspan(i * 36, 36), std::span(labels).subspan(i, 1))
            ->loss;
  }
  EXPECT_NEAR(all.loss, one_by_one, 1e-5);
  EXPECT_EQ(rank.network().Evaluate(0, {}, {})->samples, 0);
}

TEST(Network, RefusesAPlanForAnotherModel) {
  v1::RunSpec spec = Spec();
  const ParameterIndex index = *ParameterIndex::FromModel(spec.model());
  Plan plan = *PlanFromProto(*MakePlan(spec, 1), index);
  plan.layers[0].name = "other";
  auto transports = MakeThreadTransports(1, absl::Seconds(1));
  MeshCommunicators comms(*transports[0], plan.mesh);
  ParameterStore store(index, OwnershipOf(plan, index, 0), 0);
  auto kernels = MakeReferenceKernels();
  const Graph graph = *Graph::FromModel(spec.model());
  const auto made = Network::Make(graph, index, plan, *kernels, store, comms);
  EXPECT_TRUE(absl::IsInvalidArgument(made.status()));
}

}  // namespace
}  // namespace cadre
