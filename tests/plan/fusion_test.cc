#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/run_file.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "tests/plan/tape_fixture.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

constexpr char kResidual[] = R"(model {
  input { channels: 2 height: 8 width: 6 }
  layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 no_bias: true } }
  layer { name: "bn1" batch_norm {} }
  layer { name: "relu1" relu {} }
  layer { name: "conv2" convolution { out_channels: 4 kernel: 3 padding: 1 no_bias: true } }
  layer { name: "bn2" batch_norm {} }
  layer { name: "add" input: "bn2" input: "relu1" add {} }
  layer { name: "relu2" relu {} }
  layer { name: "fc" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class FusionTest : public testing::TapeFixture {
 protected:
  explicit FusionTest(const char* model = kResidual) : TapeFixture(model) {}

  Tape Make(Fusion fusion, bool training = true) const {
    return MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, training, DType::kFloat32, fusion);
  }

  // The operations, such as "forward bn1" and "add relu1", which adds gradients.
  std::vector<std::string> OpsOf(const Tape& tape) const {
    std::vector<std::string> ops;
    for (const TapeOp& op : tape.ops) {
      const std::string kind = op.kind == TapeOpKind::kForward    ? "forward "
                               : op.kind == TapeOpKind::kBackward ? "backward "
                               : op.kind == TapeOpKind::kAdd      ? "add "
                               : op.kind == TapeOpKind::kLoss     ? ""
                                                                  : "move ";
      ops.push_back(kind + graph_[op.layer].name);
    }
    return ops;
  }
};

TEST_F(FusionTest, BatchNormTakesWhatFollows) {
  const Tape tape = Make(Fusion::kCommon);
  EXPECT_THAT(OpsOf(tape), ElementsAre("forward conv1", "forward bn1", "forward conv2",
                                       "forward bn2", "forward fc/flatten", "forward fc", "loss",
                                       "backward fc", "backward fc/flatten", "backward bn2",
                                       "backward conv2", "backward bn1", "backward conv1"));
  const TapeOp& bn1 = Find(tape, TapeOpKind::kForward, "bn1");
  EXPECT_TRUE(bn1.relu);
  EXPECT_EQ(bn1.addend, TapeOp::kNone);
  // Mean and inverse, and a word of bits for 32 of the 4 * 8 * 6 rows.
  EXPECT_EQ(tape.buffers[bn1.saved].elements, 2 * 4 + 4 * 8 * 6 / 32 * 4);
  const TapeOp& bn2 = Find(tape, TapeOpKind::kForward, "bn2");
  EXPECT_TRUE(bn2.relu);
  EXPECT_EQ(bn2.addend, bn1.y);
  const TapeOp& back2 = Find(tape, TapeOpKind::kBackward, "bn2");
  EXPECT_NE(back2.total_dy, TapeOp::kNone) << "it is the gradient of relu1, too";
  EXPECT_EQ(back2.total_dy, back2.dy) << "in place";
  const TapeOp& back1 = Find(tape, TapeOpKind::kBackward, "bn1");
  EXPECT_EQ((std::set<int>{back1.dy, back1.other_dy}),
            (std::set<int>{back2.total_dy, Find(tape, TapeOpKind::kBackward, "conv2").dx[0]}));
}

TEST_F(FusionTest, CanBeSwitchedOff) {
  const std::vector<std::string> ops = OpsOf(Make(Fusion::kOff));
  for (const char* op : {"forward relu1", "forward add", "forward relu2", "backward relu2",
                         "add relu1", "backward relu1"}) {
    EXPECT_THAT(ops, ::testing::Contains(op));
  }
}

TEST_F(FusionTest, EvaluationFusesForward) {
  EXPECT_THAT(OpsOf(Make(Fusion::kCommon, /*training=*/false)),
              ElementsAre("forward conv1", "forward bn1", "forward conv2", "forward bn2",
                          "forward fc/flatten", "forward fc", "loss"));
}

// The value between bn1 and relu1 moves; those of bn2, add and relu2 do not.
TEST_F(FusionTest, NotAcrossMoves) {
  Plan plan = PlanSplitting("samples", 2);
  plan.layers[1] = *LayOut(graph_[1], plan.mesh, {{"height", {"axis"}}});
  const Tape tape = MakeTape(graph_, plan, 0, 4, /*training=*/true);
  EXPECT_FALSE(Find(tape, TapeOpKind::kForward, "bn1").relu);
  EXPECT_FALSE(Find(tape, TapeOpKind::kBackward, "bn1").relu);
  Find(tape, TapeOpKind::kForward, "relu1");
  Find(tape, TapeOpKind::kBackward, "relu1");
  EXPECT_TRUE(Find(tape, TapeOpKind::kBackward, "bn2").relu);
}

TEST_F(FusionTest, LiveBuffersDoNotOverlap) {
  for (const char* index : {"samples", "height", "channels", "out"}) {
    const Tape tape = MakeTape(graph_, PlanSplitting(index, 2), 1, 4, /*training=*/true);
    testing::ExpectLiveBuffersDoNotOverlap(tape);
  }
}

// What an operation counts, in elements of its 4 * 8 * 6 * 4 values.
TEST_F(FusionTest, BytesMoved) {
  const auto count = [&](Fusion fusion, TapeOpKind kind, const std::string& layer) {
    const Tape tape = Make(fusion);
    const int64_t bytes = BytesMoved(graph_, tape, Find(tape, kind, layer));
    return bytes / (4 * 8 * 6 * 4 * 4);
  };
  EXPECT_EQ(count(Fusion::kOff, TapeOpKind::kForward, "bn1"), 3) << "x twice, y";
  EXPECT_EQ(count(Fusion::kOff, TapeOpKind::kForward, "relu1"), 2);
  EXPECT_EQ(count(Fusion::kOff, TapeOpKind::kForward, "add"), 3) << "in place";
  EXPECT_EQ(count(Fusion::kOff, TapeOpKind::kBackward, "relu1"), 3) << "y, dy, dx";
  EXPECT_EQ(count(Fusion::kOff, TapeOpKind::kBackward, "bn1"), 5) << "x and dy twice, dx";
  EXPECT_EQ(count(Fusion::kOff, TapeOpKind::kAdd, "relu1"), 3);
  EXPECT_EQ(count(Fusion::kCommon, TapeOpKind::kForward, "bn1"), 3);
  EXPECT_EQ(count(Fusion::kCommon, TapeOpKind::kForward, "bn2"), 4) << "and the addend";
  EXPECT_EQ(count(Fusion::kCommon, TapeOpKind::kBackward, "bn2"), 6)
      << "x twice, dy, the total twice, dx";
  EXPECT_EQ(count(Fusion::kCommon, TapeOpKind::kBackward, "bn1"), 7) << "and another dy";
}

constexpr char kProduct[] = R"(model {
  input { channels: 4 height: 8 width: 6 }
  layer { name: "conv" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "product" convolution { out_channels: 5 kernel: 1 } }
  layer { name: "pool" input: "conv" max_pool { kernel: 1 } }
  layer { name: "concat" input: "product" input: "pool" concat {} }
  layer { name: "fc" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class ProductFusionTest : public FusionTest {
 protected:
  ProductFusionTest() : FusionTest(kProduct) {}
};

TEST_F(ProductFusionTest, AddsToSumOnTheHost) {
  const Tape tape = Make(Fusion::kHost);
  const TapeOp& product = Find(tape, TapeOpKind::kBackward, "product");
  EXPECT_TRUE(product.adds_dx);
  EXPECT_EQ(product.dx, Find(tape, TapeOpKind::kBackward, "pool").dx);
  EXPECT_EQ(product.dx[0], Find(tape, TapeOpKind::kBackward, "conv").dy);
  EXPECT_THAT(OpsOf(tape), ::testing::Not(::testing::Contains("add conv")));
  EXPECT_THAT(OpsOf(Make(Fusion::kCommon)), ::testing::Contains("add conv"));
}

TEST_F(ProductFusionTest, NotInBf16) {
  const Tape tape = MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, /*training=*/true,
                             DType::kBFloat16, Fusion::kHost);
  EXPECT_THAT(OpsOf(tape), ::testing::Contains("add conv"));
}

// The gradient of the product's input is a partial sum, which moves before it is added.
TEST_F(ProductFusionTest, NotAcrossMoves) {
  const Tape tape = MakeTape(graph_, PlanSplitting("out", 2), 0, 4, /*training=*/true,
                             DType::kFloat32, Fusion::kHost);
  EXPECT_FALSE(Find(tape, TapeOpKind::kBackward, "product").adds_dx);
}

// The gradient of `sum` is sent to `far`, and is also a part of the gradient of `act`.
constexpr char kSent[] = R"(model {
  input { channels: 4 height: 8 width: 6 }
  layer { name: "conv" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "act" gelu {} }
  layer { name: "far" input: "conv" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "product" input: "act" convolution { out_channels: 4 kernel: 1 } }
  layer { name: "sum" input: "far" input: "act" add {} }
  layer { name: "concat" input: "sum" input: "product" concat {} }
  layer { name: "fc" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class SentFusionTest : public FusionTest {
 protected:
  SentFusionTest() : FusionTest(kSent) {}

  // On rank 0, which has all layers but `far`.
  Tape MakePlaced() const {
    return MakeTape(graph_, testing::PlanPlacing(graph_, "far"), 0, 4, /*training=*/true,
                    DType::kFloat32, Fusion::kHost);
  }
};

TEST_F(SentFusionTest, NothingIsAddedToWhatIsBeingSent) {
  const Tape tape = MakePlaced();
  const TapeOp& product = Find(tape, TapeOpKind::kBackward, "product");
  EXPECT_FALSE(product.adds_dx);
  const TapeOp& add = Find(tape, TapeOpKind::kAdd, "act");
  EXPECT_THAT(add.x, ::testing::Contains(product.dx[0]));
  const int sum = add.x[add.x[0] == product.dx[0] ? 1 : 0];
  EXPECT_TRUE(std::any_of(tape.ops.begin(), tape.ops.end(), [sum](const TapeOp& op) {
    return op.kind == TapeOpKind::kSend && op.x[0] == sum;
  }));
}

// Shares of the bytes and of the memory that a training step needs without fusion.
struct ZooCase {
  const char* model;
  DType type;
  Fusion fusion;
  double bytes, memory;

  friend std::ostream& operator<<(std::ostream& out, const ZooCase& zoo) {
    return out << zoo.model << ", " << DTypeName(zoo.type);
  }
};

class ZooFusionTest : public ::testing::TestWithParam<ZooCase> {};

TEST_P(ZooFusionTest, MovesFewerBytesAndNeedsLessMemory) {
  const ZooCase& zoo = GetParam();
  const auto file = ReadRunSpec(testing::ZooFolder() + "/" + zoo.model + ".textproto");
  ASSERT_TRUE(file.ok()) << file.status();
  const Graph graph = *Graph::FromModel(file->spec.model());
  const auto make = [&](Fusion fusion) {
    return MakeTape(graph, testing::PlanSplitting(graph, "samples", 1), 0, 16, /*training=*/true,
                    zoo.type, fusion);
  };
  const Tape fused = make(zoo.fusion), separate = make(Fusion::kOff);
  const double bytes = BytesMovedOutsideConvolutions(graph, fused);
  EXPECT_NEAR(bytes / BytesMovedOutsideConvolutions(graph, separate), zoo.bytes, 0.001);
  EXPECT_NEAR(1.0 * fused.words / separate.words, zoo.memory, 0.001);
  EXPECT_TRUE(std::none_of(fused.ops.begin(), fused.ops.end(), [&](const TapeOp& op) {
    return graph[op.layer].kind == LayerKind::kRelu && op.kind != TapeOpKind::kAdd;
  })) << "every ReLU follows a batch norm";
}

INSTANTIATE_TEST_SUITE_P(
    Models, ZooFusionTest,
    ::testing::Values(ZooCase{"resnet50", DType::kFloat32, Fusion::kHost, 0.5982, 0.9762},
                      ZooCase{"resnet50", DType::kFloat32, Fusion::kCommon, 0.6330, 0.9762},
                      ZooCase{"resnet50", DType::kBFloat16, Fusion::kHost, 0.6390, 0.9905},
                      ZooCase{"resnet18", DType::kFloat32, Fusion::kHost, 0.6523, 0.8599},
                      ZooCase{"resnet18", DType::kBFloat16, Fusion::kCommon, 0.6614, 0.8784},
                      ZooCase{"inception-v3", DType::kFloat32, Fusion::kHost, 0.6096, 0.8146}),
    [](const auto& info) {
      return absl::StrCat(info.index, absl::StrReplaceAll(info.param.model, {{"-", ""}}));
    });

}  // namespace
}  // namespace cadre
