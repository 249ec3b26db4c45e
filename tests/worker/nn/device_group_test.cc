// Networks on a group of emulated CUDA devices, whose moves travel over NCCL beside the work that
// does not need them, held against the same group on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "google/protobuf/text_format.h"
#include "plan/memory.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/worker/nn/loss_of_pass.h"
#include "tests/worker/transport/ranks.h"
#include "worker/nn/network.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace cadre {
namespace {

using Floats = std::vector<float>;
using Mode = EmulatedCuda::Mode;

constexpr int kRanks = 2;
constexpr int64_t kSamples = 4;
constexpr float kScale = 0.25F;

// Large enough that halos travel beside the rows that do not need them.
constexpr char kImages[] = R"pb(
  input { channels: 2 height: 24 width: 24 }
  layer {
    name: "conv1"
    convolution { out_channels: 20 kernel: 3 padding: 1 }
  }
  layer {
    name: "bn"
    batch_norm {}
  }
  layer {
    name: "relu"
    relu {}
  }
  layer {
    name: "conv2"
    convolution { out_channels: 20 kernel: 3 padding: 1 }
  }
  layer {
    name: "add"
    input: "conv2"
    input: "relu"
    add {}
  }
  layer {
    name: "pool"
    max_pool { kernel: 3 stride: 2 }
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

constexpr char kTokens[] = R"pb(
  tokens { length: 6 }
  layer {
    name: "embed"
    embedding { vocabulary: 5 features: 8 positions: true }
  }
  layer {
    name: "norm"
    layer_norm {}
  }
  layer {
    name: "attention"
    attention { heads: 4 causal: true }
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

struct Model {
  explicit Model(const char* text) {
    v1::Model model;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model));
    graph = *Graph::FromModel(model);
    index = ParameterIndex::FromGraph(graph);
  }

  // Every layer splits the indices if it has them.
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

// One rank's network with its part of a batch.
class RankNetwork {
 public:
  RankNetwork(const Model& model, const Plan& plan, Backend& kernels, Transport& transport)
      : kernels_(kernels),
        comms_(transport, plan.mesh),
        store_(model.index, OwnershipOf(plan, model.index, transport.rank()), 3, kernels),
        network_(model.graph, model.index, plan, 3, kernels, store_, comms_) {
    network_.set_listener(&loss_of_pass_);
    const Interval rows = network_.InputRows(kSamples);
    const int64_t elements = model.graph.input().elements();
    for (int64_t i = rows.begin * elements; i < rows.end * elements; ++i) {
      const auto at = static_cast<uint64_t>(i);
      inputs_.push_back(model.graph.takes_tokens()
                            ? static_cast<float>(RandomBits(1, RandomStream::kTest, 0, at) % 5)
                            : RandomNormal(1, RandomStream::kTest, 0, at));
    }
    const Interval labelled = network_.LabelRows(kSamples);
    const int64_t labels = model.graph.labels_per_sample();
    for (int64_t i = labelled.begin * labels; i < labelled.end * labels; ++i) {
      labels_.push_back(static_cast<int32_t>(i * 7 % model.graph.classes()));
    }
  }

  BatchView batch() const { return {kSamples, inputs_, labels_, /*first_position=*/7}; }
  Network& network() { return network_; }
  int number() const { return comms_.rank(); }

  double Loss() { return loss_of_pass_.Get().loss; }
  // Of all buckets, one behind the other.
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
  LossOfPass loss_of_pass_{kernels_.device()};
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
  OnRanks(kRanks, [&](int r) {
    const auto at = static_cast<size_t>(r);
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
  OnRanks(kRanks, [&](int r) {
    const auto at = static_cast<size_t>(r);
    const EmulatedRank emulated =
        MakeEmulatedRank({.mode = mode, .precision = precision, .memory = 256 << 20});
    auto transport =
        MakeNcclTransport(nccl.api(), *emulated.device, *emulated.kernels, *hosts[at], {});
    ASSERT_TRUE(transport.ok()) << transport.status();
    {
      RankNetwork rank(model, plan, *emulated.kernels, **transport);
      outcomes[at] = body(rank, *emulated.device);
    }
    // Nobody leaves while others are still under way.
    EXPECT_TRUE(emulated.device->Synchronize().ok());
    EXPECT_TRUE(Communicator(*hosts[at], {0, 1}).Barrier().ok());
  });
  return outcomes;
}

// Relative to the length of what is expected.
double Distance(const Floats& found, const Floats& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double squares = 0;
  double apart = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    squares += static_cast<double>(expected[i]) * expected[i];
    apart += std::pow(static_cast<double>(found[i]) - expected[i], 2);
  }
  return std::sqrt(apart / squares);
}

void ExpectNear(const Outcomes& found, const Outcomes& expected, double tolerance) {
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_NEAR(found[r].loss, expected[r].loss, tolerance * (1 + expected[r].loss))
        << "rank " << r;
    EXPECT_LT(Distance(found[r].gradients, expected[r].gradients), tolerance) << "rank " << r;
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

  Outcomes Plays(Mode mode, Precision precision) {
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

TEST_P(DeviceGroup, PlaysAsTheHostDoes) {
  const Outcomes expected = OnHost(model_, plan_);
  const Outcomes in_line = Plays(Mode::kInline, Precision::kFp32);
  ExpectNear(in_line, expected, 2e-5);
  // bf16 activations, and sums of partial ones, round at 2^-9.
  ExpectNear(Plays(Mode::kInline, Precision::kBf16), expected, 0.06);
  // Streams that run beside one another change no bit.
  ExpectEqual(Plays(Mode::kThreads, Precision::kFp32), in_line);
}

TEST_P(DeviceGroup, RecordingsHoldTheMovesToo) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const Outcomes played = Plays(Mode::kInline, precision);
    const Outcomes replayed =
        OnDevices(model_, plan_, Mode::kThreads, precision, [](RankNetwork& rank, Device& device) {
          PlayOnce(rank);
          auto recording =
              device.CaptureGraph([&] { return PlayLoaded(rank.network(), kSamples, kScale); });
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

TEST_P(DeviceGroup, TakesTheMemoryThatWasPlanned) {
  v1::RunSpec spec;
  spec.set_batch_per_group(kSamples);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    spec.set_precision(precision == Precision::kBf16 ? v1::RunSpec::BF16 : v1::RunSpec::FP32);
    OnDevices(model_, plan_, Mode::kInline, precision, [&](RankNetwork& rank, Device&) {
      EXPECT_TRUE(rank.network().Prepare(kSamples, /*training=*/true).ok());
      const v1::MemoryUse planned =
          PlannedMemory(spec, model_.graph, model_.index, plan_, rank.number(), v1::Cluster::CUDA);
      EXPECT_EQ(rank.network().activation_bytes(), static_cast<int64_t>(planned.activations()));
      EXPECT_EQ(rank.network().buffer_bytes(), static_cast<int64_t>(planned.buffers()));
      return Outcome();
    });
  }
}

class Counter final : public TapeObserver {
 public:
  void Played(const Tape& /*tape*/, const TapeOp& /*op*/, absl::Time /*begin*/,
              double /*seconds*/) override {
    ++ops;
  }
  size_t ops = 0;
};

// An observer takes away what happens at the same time, not how it is cut into parts.
TEST_P(DeviceGroup, LookingCloselyChangesNoBit) {
  const Outcomes played = Plays(Mode::kInline, Precision::kFp32);
  const Outcomes observed =
      OnDevices(model_, plan_, Mode::kInline, Precision::kFp32,
                [this](RankNetwork& rank, Device& /*device*/) {
                  Counter counter;
                  rank.network().set_observer(&counter);
                  const Outcome outcome = PlayOnce(rank);
                  rank.network().set_observer(nullptr);
                  EXPECT_EQ(rank.network().seconds_moving() > 0, Moves());
                  EXPECT_GE(counter.ops, static_cast<size_t>(model_.graph.size()));
                  return outcome;
                });
  ExpectEqual(observed, played);
}

INSTANTIATE_TEST_SUITE_P(Plans, DeviceGroup,
                         ::testing::Values(Case{"Rows", kImages, {"height"}},
                                           Case{"Channels", kImages, {"in", "out"}},
                                           Case{"Samples", kImages, {"samples"}},
                                           Case{"Heads", kTokens, {"heads", "out"}},
                                           Case{"Tokens", kTokens, {"tokens"}}),
                         [](const auto& info) { return std::string(info.param.name); });

// Else nothing above has travelled beside anything.
TEST(DeviceGroupPlans, HaveHalosAndGradientsThatTravelBesideWork) {
  const Model model(kImages);
  const Tape tape = MakeTape(model.graph, model.Splitting({"height"}), 0, kSamples, true);
  const auto travels = [&](TapeOpKind kind) {
    return std::any_of(tape.ops.begin(), tape.ops.end(),
                       [&](const TapeOp& op) { return op.kind == kind && op.with_next; });
  };
  EXPECT_TRUE(travels(TapeOpKind::kMove));
  EXPECT_TRUE(travels(TapeOpKind::kBackward));
}

}  // namespace
}  // namespace cadre
