// Networks on a group of emulated CUDA devices, whose moves use NCCL and overlap with computing,
// compared with the same group on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "comm/transport/nccl/nccl_transport.h"
#include "plan/memory.h"
#include "tests/base/expect.h"
#include "tests/comm/transport/ranks.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/worker/nn/one_rank.h"
#include "worker/nn/network.h"

namespace cadre {
namespace {

using Floats = std::vector<float>;
using Mode = EmulatedCuda::Mode;

constexpr int kRanks = 2;
constexpr int64_t kSamples = 4;
constexpr float kScale = 0.25F;

// Large enough that halos are exchanged while the interior is computed.
constexpr char kImages[] = R"(
  input { channels: 2 height: 24 width: 24 }
  layer { name: "conv1" convolution { out_channels: 20 kernel: 3 padding: 1 } }
  layer { name: "bn" batch_norm {} }
  layer { name: "relu" relu {} }
  layer { name: "conv2" convolution { out_channels: 20 kernel: 3 padding: 1 } }
  layer { name: "add" input: "conv2" input: "relu" add {} }
  layer { name: "pool" max_pool { kernel: 3 stride: 2 } }
  layer { name: "fc" fully_connected { out_features: 5 } }
  layer { name: "loss" softmax_cross_entropy {} }
)";

struct Model {
  explicit Model(const char* text) {
    graph = *Graph::FromModel(Parse<v1::Model>(text));
    index = ParameterIndex::FromGraph(graph);
  }

  // Splits those indices that a layer has.
  Plan Splitting(const std::vector<std::string>& indices) const {
    Plan plan{.mesh = Mesh({{"axis", kRanks}})};
    for (const GraphLayer& layer : graph.layers()) {
      auto layouts = LayOut(layer, plan.mesh, {});
      for (const std::string& name : indices) {
        auto split = LayOut(layer, plan.mesh, {{name, {"axis"}}});
        if (split.ok()) layouts = std::move(split);
      }
      EXPECT_TRUE(layouts.ok()) << layouts.status();
      plan.layers.push_back(*std::move(layouts));
    }
    plan.buckets = MakeBuckets(plan.layers, plan.mesh, index);
    return plan;
  }

  Graph graph;
  ParameterIndex index;
};

// One rank's network and its part of a batch.
class RankNetwork {
 public:
  RankNetwork(const Model& model, const Plan& plan, Backend& kernels, Transport& transport)
      : kernels_(kernels),
        comms_(transport, plan.mesh),
        store_(model.index, OwnershipOf(plan, model.index, transport.rank()), 3, kernels),
        network_(model.graph, model.index, plan, 3, kernels, store_, comms_) {
    network_.set_listener(&loss_of_pass_);
    testing::FillBatch(model.graph, network_.batches().InputRows(kSamples),
                       network_.batches().LabelRows(kSamples), inputs_, labels_);
  }

  BatchView batch() const { return {kSamples, inputs_, labels_, /*first_position=*/7}; }
  Network& network() { return network_; }
  int number() const { return comms_.rank(); }

  double Loss() { return loss_of_pass_.Get().loss; }
  // The gradients of all buckets, in order.
  Floats Gradients() {
    Floats all;
    for (int b = 0; b < store_.buckets(); ++b) {
      const std::span<const float> gradients = store_.gradients(b);
      Floats read(gradients.size());
      EXPECT_TRUE(
          kernels_.device().CopyOut(gradients.data(), read.data(), gradients.size_bytes()).ok());
      all.insert(all.end(), read.begin(), read.end());
    }
    return all;
  }

 private:
  Backend& kernels_;
  MeshCommunicators comms_;
  ParameterStore store_;
  testing::LossOfPass loss_of_pass_{kernels_.device()};
  Network network_;
  Floats inputs_;
  std::vector<int32_t> labels_;
};

struct Outcome {
  double loss = 0;
  Floats gradients;
};
using Outcomes = std::vector<Outcome>;

Outcome PlayOnce(RankNetwork& rank) {
  const absl::Status played = rank.network().ForwardBackward(rank.batch(), kScale, 1);
  EXPECT_TRUE(played.ok()) << played;
  return {rank.Loss(), rank.Gradients()};
}

using Body = std::function<Outcome(RankNetwork& rank, Device& device)>;

Outcomes OnHost(const Model& model, const Plan& plan) {
  const Transports transports = MakeThreadTransports(kRanks, absl::Seconds(60));
  Outcomes outcomes(kRanks);
  OnRanks(kRanks, [&](int at) {
    const std::unique_ptr<Backend> kernels = MakeReferenceBackend();
    RankNetwork rank(model, plan, *kernels, *transports[at]);
    outcomes[at] = PlayOnce(rank);
  });
  return outcomes;
}

Outcomes OnDevices(const Model& model, const Plan& plan, Mode mode, Precision precision,
                   const Body& body) {
  const Transports hosts = MakeThreadTransports(kRanks, absl::Seconds(60));
  FakeNccl nccl;
  Outcomes outcomes(kRanks);
  OnRanks(kRanks, [&](int at) {
    const EmulatedRank emulated =
        MakeEmulatedRank({.mode = mode, .precision = precision, .memory = 256 << 20});
    auto transport =
        MakeNcclTransport(nccl.api(), *emulated.device, *emulated.kernels, *hosts[at], {});
    ASSERT_TRUE(transport.ok()) << transport.status();
    {
      RankNetwork rank(model, plan, *emulated.kernels, **transport);
      outcomes[at] = body(rank, *emulated.device);
    }
    // A rank must not leave while others still communicate.
    EXPECT_TRUE(emulated.device->Synchronize().ok());
    EXPECT_TRUE(Communicator(*hosts[at], {0, 1}).Barrier().ok());
  });
  return outcomes;
}

void ExpectNear(const Outcomes& found, const Outcomes& expected, double tolerance) {
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_NEAR(found[r].loss, expected[r].loss, tolerance * (1 + expected[r].loss))
        << "rank " << r;
    EXPECT_LT(testing::RelativeDistance(found[r].gradients, expected[r].gradients), tolerance)
        << "rank " << r;
  }
}

void ExpectEqual(const Outcomes& found, const Outcomes& expected) {
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(found[r].loss, expected[r].loss) << "rank " << r;
    EXPECT_EQ(found[r].gradients, expected[r].gradients) << "rank " << r;
  }
}

struct Case {
  const char* name;
  const char* model;
  std::vector<std::string> split;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

class DeviceGroup : public ::testing::TestWithParam<Case> {
 protected:
  DeviceGroup() : model_(GetParam().model), plan_(model_.Splitting(GetParam().split)) {}

  Outcomes PlayOnDevices(Mode mode, Precision precision) {
    return OnDevices(model_, plan_, mode, precision,
                     [](RankNetwork& rank, Device&) { return PlayOnce(rank); });
  }

  bool Moves() const {
    const Tape tape = MakeTape(model_.graph, plan_, 0, kSamples, /*training=*/true);
    return std::any_of(tape.ops.begin(), tape.ops.end(),
                       [](const TapeOp& op) { return !op.move.is_identity(); });
  }

  const Model model_;
  const Plan plan_;
};

TEST_P(DeviceGroup, EqualsTheHost) {
  const Outcomes expected = OnHost(model_, plan_);
  const Outcomes in_line = PlayOnDevices(Mode::kInline, Precision::kFp32);
  ExpectNear(in_line, expected, 2e-5);
  // bf16 activations and their partial sums round at 2^-9.
  ExpectNear(PlayOnDevices(Mode::kInline, Precision::kBf16), expected, 0.06);
  // Concurrent streams do not change results.
  ExpectEqual(PlayOnDevices(Mode::kThreads, Precision::kFp32), in_line);
}

TEST_P(DeviceGroup, RecordingsContainMoves) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const Outcomes played = PlayOnDevices(Mode::kInline, precision);
    const Outcomes replayed =
        OnDevices(model_, plan_, Mode::kThreads, precision, [](RankNetwork& rank, Device& device) {
          PlayOnce(rank);
          auto recording = device.CaptureGraph(
              [&] { return testing::PlayLoaded(rank.network(), kSamples, kScale); });
          EXPECT_TRUE(recording.ok()) << recording.status();
          if (!recording.ok()) return Outcome();
          for (int again = 0; again < 3; ++again) {
            EXPECT_TRUE(rank.network().Load(rank.batch()).ok());
            device.LaunchGraph(**recording);
          }
          return Outcome{rank.Loss(), rank.Gradients()};
        });
    ExpectEqual(replayed, played);
  }
}

TEST_P(DeviceGroup, UsesPlannedMemory) {
  v1::RunSpec spec;
  spec.set_batch_per_group(kSamples);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    spec.set_precision(precision == Precision::kBf16 ? v1::RunSpec::BF16 : v1::RunSpec::FP32);
    OnDevices(model_, plan_, Mode::kInline, precision, [&](RankNetwork& rank, Device&) {
      EXPECT_TRUE(rank.network().Prepare(kSamples, /*training=*/true).ok());
      const int64_t evaluated = EvaluationSamples(spec, model_.graph, plan_);
      EXPECT_TRUE(rank.network().Prepare(evaluated, /*training=*/false).ok());
      const v1::MemoryUse planned =
          PlannedMemory(spec, model_.graph, model_.index, plan_, rank.number(), v1::Cluster::CUDA,
                        /*in_flight=*/1);
      EXPECT_EQ(rank.network().activation_bytes(), planned.activations());
      EXPECT_EQ(rank.network().buffer_bytes(), planned.buffers());
      return Outcome();
    });
  }
}

// An observer prevents overlap, but layers still compute in parts.
TEST_P(DeviceGroup, ObserverDoesNotChangeResults) {
  const Outcomes played = PlayOnDevices(Mode::kInline, Precision::kFp32);
  const Outcomes observed = OnDevices(model_, plan_, Mode::kInline, Precision::kFp32,
                                      [this](RankNetwork& rank, Device& /*device*/) {
                                        testing::CountingObserver observer;
                                        rank.network().set_observer(&observer);
                                        const Outcome outcome = PlayOnce(rank);
                                        rank.network().set_observer(nullptr);
                                        EXPECT_EQ(rank.network().seconds_moving() > 0, Moves());
                                        EXPECT_GE(observer.ops(), model_.graph.size());
                                        return outcome;
                                      });
  ExpectEqual(observed, played);
}

INSTANTIATE_TEST_SUITE_P(Plans, DeviceGroup,
                         ::testing::Values(Case{"Rows", kImages, {"height"}},
                                           Case{"Channels", kImages, {"in", "out"}},
                                           Case{"Samples", kImages, {"samples"}},
                                           Case{"Heads", testing::kTokens, {"heads", "out"}},
                                           Case{"Tokens", testing::kTokens, {"tokens"}},
                                           Case{"Classes", testing::kManyClasses, {"samples"}},
                                           Case{"PartsOfClasses", testing::kManyClasses, {"out"}},
                                           Case{"Sampled", testing::kSampled, {"samples"}}),
                         [](const auto& info) { return std::string(info.param.name); });

// Verifies that the tests above cover overlapping moves.
TEST(DeviceGroupPlans, OverlapHalosAndGradientsWithComputing) {
  const Model model(kImages);
  const Tape tape = MakeTape(model.graph, model.Splitting({"height"}), 0, kSamples, true);
  const auto overlaps = [&](TapeOpKind kind) {
    return std::any_of(tape.ops.begin(), tape.ops.end(),
                       [&](const TapeOp& op) { return op.kind == kind && op.with_next; });
  };
  EXPECT_TRUE(overlaps(TapeOpKind::kMove));
  EXPECT_TRUE(overlaps(TapeOpKind::kBackward));
}

}  // namespace
}  // namespace cadre
