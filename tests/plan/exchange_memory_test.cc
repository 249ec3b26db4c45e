#include "plan/exchange_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/memory.h"
#include "plan/ownership.h"
#include "plan/plan.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

v1::RunSpec Spec(const std::string& averaging) {
  return testing::SpecOf(absl::StrCat(R"(
    name: "memory"
    model {
      input { channels: 1 height: 1 width: 2048 }
      layer { name: "fc1" fully_connected { out_features: 1024 no_bias: true } }
      layer { name: "fc2" fully_connected { out_features: 4 no_bias: true } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    data { synthetic { train_samples: 64 test_samples: 20 classes: 4 } }
    batch_per_group: 8
    optimizer { adamw {} }
    averaging { every_steps: 4 )",
                                      averaging, " }"));
}

const char* const kCoded = "up { codec: CODEC_E3M0 } down { codec: CODEC_E3M0 } ";

// Words of a code of 4.03 bits a value.
constexpr double kFrame = (128 + 1) / 256.0;

TEST(ExchangeMemory, BytesPerValueOfARankThatIsAlone) {
  const auto bytes = [](const std::string& averaging) {
    return ExchangeBytesPerValue(Spec(averaging), 1, /*on_device=*/false);
  };
  // The version, what is staged, and two states.
  EXPECT_EQ(bytes(""), 4 + 4 + 2 * 4);
  // The version, what is carried, and the states.
  EXPECT_EQ(bytes(kCoded), 4 + 4 + kFrame + 2 * 4);
  // Also what was contributed, and the states at two contributions.
  EXPECT_EQ(bytes(absl::StrCat(kCoded, "overlap { steps: 1 }")), 4 + 4 + 4 + kFrame + 2 * 2 * 4);
  EXPECT_EQ(bytes("fragments { count: 4 }"), 4 + 4 + 4 + 2 * 4);
  v1::RunSpec alone = Spec("");
  alone.mutable_averaging()->set_every_steps(0);
  EXPECT_EQ(ExchangeBytesPerValue(alone, 1, /*on_device=*/false), 0);
}

// The copies of states and of what is carried are those of two contributions, and of two ranks.
TEST(ExchangeMemory, BytesPerValueOfRanksWithPeers) {
  EXPECT_EQ(ExchangeBytesPerValue(Spec(""), 2, /*on_device=*/false), 4 + 4 + 4 * 2 * 4);
  EXPECT_EQ(ExchangeBytesPerValue(Spec(kCoded), 2, /*on_device=*/false),
            4 + 4 + 4 + kFrame + 2 * 3 * 4 + 4 * 2 * 4);
  // The device has what is carried.
  EXPECT_EQ(ExchangeBytesPerValue(Spec(kCoded), 1, /*on_device=*/true), 4 + kFrame + 3 * 4 + 2 * 4);
}

TEST(ExchangeMemory, BytesOfARankAreThoseOfItsValues) {
  for (const std::string& averaging : {std::string(), std::string(kCoded)}) {
    const v1::RunSpec spec = Spec(averaging);
    const Graph graph = *Graph::FromModel(spec.model());
    const ParameterIndex index = ParameterIndex::FromGraph(graph);
    for (const int ranks : {1, 2}) {
      Plan plan{.mesh = ranks == 1 ? Mesh() : Mesh({{"data", ranks}})};
      for (const GraphLayer& layer : graph.layers()) {
        plan.layers.push_back(*LayOut(layer, plan.mesh, {}, {}));
      }
      plan.buckets = MakeBuckets(plan.layers, plan.mesh, index);
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<BucketOwnership> buckets = OwnershipOf(plan, index, rank);
        const auto bytes = static_cast<double>(
            ExchangeBytes(spec, index, buckets, rank, ranks, /*on_device=*/false));
        const double expected = ExchangeBytesPerValue(spec, ranks, /*on_device=*/false) *
                                static_cast<double>(index.size()) / ranks;
        EXPECT_LE(bytes / expected, 1.01) << averaging << ranks;
        // Values in fp32 that are one interval are not staged.
        EXPECT_GE(bytes / expected, averaging.empty() ? 0.89 : 0.99) << averaging << ranks;
      }
    }
  }
}

TEST(ExchangeMemory, DeviceWithItsOwnMemoryHasNoneOfIt) {
  v1::MemoryUse use;
  use.set_weights(1);
  use.set_gradients(2);
  use.set_optimizer(4);
  use.set_activations(8);
  use.set_buffers(16);
  use.set_exchange(32);
  EXPECT_EQ(DeviceBytes(use, v1::Cluster::CPU), 63);
  EXPECT_EQ(DeviceBytes(use, v1::Cluster::CUDA), 31);
}

}  // namespace
}  // namespace cadre
