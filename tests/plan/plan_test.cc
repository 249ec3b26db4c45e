#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kModel[] = R"(model {
  input { channels: 1 height: 4 width: 4 }
  layer { name: "conv" convolution { out_channels: 2 kernel: 3 } }
  layer { name: "pool" max_pool { kernel: 2 } }
  layer { name: "flat" flatten {} }
  layer { name: "fc1" fully_connected { out_features: 6 } }
  layer { name: "relu" relu {} }
  layer { name: "fc2" fully_connected { out_features: 5 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

// {data: 2, model: 3}: images split over all, fc1 by outputs and fc2 by inputs.
class PlanTest : public ::testing::Test {
 protected:
  PlanTest()
      : graph_(*Graph::FromModel(testing::SpecOf(kModel).model())),
        index_(ParameterIndex::FromGraph(graph_)) {
    plan_.mesh = Mesh({{"data", 2}, {"model", 3}});
    const std::vector<IndexSplit> all = {{"samples", {"data", "model"}}};
    Lay({all,
         {{"samples", {"data", "model"}}},
         all,
         {{"samples", {"data"}}, {"out", {"model"}}},
         {{"samples", {"data"}}, {"features", {"model"}}},
         {{"samples", {"data"}}, {"in", {"model"}}},
         {{"samples", {"data"}}}});
    plan_.buckets = MakeBuckets(plan_.layers, plan_.mesh, index_);
  }

  void Lay(const std::vector<std::vector<IndexSplit>>& splits) {
    plan_.layers.clear();
    for (int l = 0; l < graph_.size(); ++l) {
      auto layer = LayOut(graph_[l], plan_.mesh, splits[l]);
      ASSERT_TRUE(layer.ok()) << layer.status();
      plan_.layers.push_back(*std::move(layer));
    }
  }

  // The plan is rejected after `change` with a message that contains `text`.
  void ExpectRejected(const std::function<void(Plan&)>& change, const std::string& text) {
    Plan plan = plan_;
    change(plan);
    const absl::Status status = CheckPlan(plan, graph_, index_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  // The same for the plan as a protobuf message.
  void ExpectProtoRejected(const std::function<void(v1::Plan&)>& change, const std::string& text) {
    v1::Plan proto = PlanToProto(plan_, index_);
    change(proto);
    const absl::Status status = PlanFromProto(proto, graph_, index_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  const Graph graph_;
  const ParameterIndex index_;
  Plan plan_;
};

TEST_F(PlanTest, ValidPlan) { EXPECT_EQ(CheckPlan(plan_, graph_, index_), absl::OkStatus()); }

TEST_F(PlanTest, ReplicatedPlan) {
  Lay(std::vector<std::vector<IndexSplit>>(7));
  plan_.buckets = MakeBuckets(plan_.layers, plan_.mesh, index_);
  EXPECT_EQ(CheckPlan(plan_, graph_, index_), absl::OkStatus());
  ASSERT_EQ(plan_.buckets.size(), 1U);
  EXPECT_THAT(plan_.buckets[0].axes, IsEmpty());
  EXPECT_THAT(plan_.buckets[0].replica_axes, ElementsAre("data", "model"));
}

TEST_F(PlanTest, EqualAxesShareBucket) {
  // In the order of backward: first the bias of fc2, which is replicated over `model` because fc2
  // is split by inputs.
  ASSERT_EQ(plan_.buckets.size(), 3U);
  EXPECT_THAT(plan_.buckets[0].parameters, ElementsAre(5)) << "fc2/bias";
  EXPECT_THAT(plan_.buckets[0].axes, ElementsAre("data"));
  EXPECT_THAT(plan_.buckets[0].replica_axes, ElementsAre("model"));
  EXPECT_THAT(plan_.buckets[1].parameters, ElementsAre(2, 3, 4)) << "fc1, fc2/weight";
  EXPECT_THAT(plan_.buckets[1].axes, ElementsAre("data"));
  EXPECT_THAT(plan_.buckets[1].replica_axes, IsEmpty());
  EXPECT_THAT(plan_.buckets[2].parameters, ElementsAre(0, 1)) << "conv";
  EXPECT_THAT(plan_.buckets[2].axes, ElementsAre("data", "model"));
}

TEST_F(PlanTest, LimitsBucketSize) {
  // fc2/weight is 5 x 2 here, fc1 is 2 x 2 and 2.
  const auto buckets = MakeBuckets(plan_.layers, plan_.mesh, index_, 15);
  ASSERT_EQ(buckets.size(), 4U);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(4));
  EXPECT_THAT(buckets[1].parameters, ElementsAre(5));
  EXPECT_THAT(buckets[2].parameters, ElementsAre(2, 3));
  EXPECT_THAT(buckets[3].parameters, ElementsAre(0, 1)) << "a layer may exceed the limit";
  EXPECT_EQ(MakeBuckets(plan_.layers, plan_.mesh, index_, 16).size(), 3U);
}

TEST_F(PlanTest, RejectsWrongLayers) {
  ExpectRejected([](Plan& p) { p.layers.pop_back(); }, "the plan has 6 layers, the model 7");
  ExpectRejected([](Plan& p) { p.layers[1].name = "pooh"; },
                 "the plan has layer 'pooh' where the model has 'pool'");
}

TEST_F(PlanTest, RejectsWrongLayouts) {
  const std::string text = "layer 'fc1': layouts do not follow from its splits";
  ExpectRejected([](Plan& p) { p.layers[3].output = Layout::Split(0, {"data"}); }, text);
  ExpectRejected([](Plan& p) { p.layers[3].inputs[0].partial_sum = {"model"}; }, text);
  ExpectRejected([](Plan& p) { p.layers[3].input_gradients[0].partial_sum.clear(); }, text);
  ExpectRejected([](Plan& p) { p.layers[3].parameters.pop_back(); }, text);
  ExpectRejected([](Plan& p) { p.layers[3].gradient_sums[1] = {"model"}; }, text);
  ExpectRejected([](Plan& p) { p.layers[3].splits[1].index = "width"; },
                 "layer 'fc1': a fully_connected has no index 'width'");
  ExpectRejected([](Plan& p) { p.layers[3].splits[1].axes = {"data"}; }, "axis 'data' twice");
}

TEST_F(PlanTest, RejectsWrongBuckets) {
  ExpectRejected([](Plan& p) { p.buckets.pop_back(); }, "conv/weight is in 0 buckets");
  ExpectRejected([](Plan& p) { p.buckets[1].parameters = {2, 4}; }, "fc1/bias is in 0 buckets");
  ExpectRejected([](Plan& p) { p.buckets.push_back(p.buckets[1]); }, "fc1/weight is in 2 buckets");
  ExpectRejected([](Plan& p) { p.buckets[1].parameters = {3, 2, 4}; }, "not in the order");
  ExpectRejected(
      [](Plan& p) {
        p.buckets[1].parameters = {2, 2, 3, 4};
      },
      "fc1/weight is in 2 buckets");
  ExpectRejected([](Plan& p) { p.buckets[1].parameters = {2, 3, 4, 6}; }, "no parameter 6");
  ExpectRejected([](Plan& p) { p.buckets[1].parameters = {-1}; }, "no parameter -1");
  ExpectRejected([](Plan& p) { p.buckets.push_back({}); }, "bucket 3: has no");
  ExpectRejected(
      [](Plan& p) {
        p.buckets[1].axes = {"data", "model"};
      },
      "bucket 1: reduces over [data, model], but fc1/weight needs [data]");
  ExpectRejected([](Plan& p) { p.buckets[2].axes = {"model", "data"}; }, "needs [data, model]");
  ExpectRejected([](Plan& p) { p.buckets[0].replica_axes.clear(); },
                 "bucket 0: reduces over [data], but fc2/bias needs [data] shared by [model]");
}

TEST_F(PlanTest, RejectsUnsupportedAlgorithms) {
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling, Algorithm::kNative}) {
    plan_.buckets[1].algorithm = algorithm;
    EXPECT_EQ(CheckPlan(plan_, graph_, index_), absl::OkStatus()) << AlgorithmName(algorithm);
  }
  ExpectRejected([](Plan& p) { p.buckets[1].algorithm = Algorithm::kSingle; },
                 "bucket 1: cannot be reduced by 'its only algorithm', only by ring, butterfly, "
                 "halving-doubling or native");
  ExpectRejected([](Plan& p) { p.buckets[1].algorithm = Algorithm::kNone; }, "'no algorithm'");
}

TEST_F(PlanTest, SeparatesKinds) {
  Lay(std::vector<std::vector<IndexSplit>>(7));
  BucketRules rules{.kinds = {1, 0, 0, 0, 0, 0, 0}, .algorithm = Algorithm::kButterfly};
  const auto buckets = MakeBuckets(plan_.layers, plan_.mesh, index_, rules);
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(buckets[1].parameters, ElementsAre(0, 1));
  EXPECT_EQ(buckets[0].algorithm, Algorithm::kButterfly);
}

TEST_F(PlanTest, SizeDependsOnSummingRanks) {
  BucketRules rules;
  std::vector<int> sizes;
  rules.max_elements = [&](int ranks) {
    sizes.push_back(ranks);
    return ranks == 2 ? 1 : 0;
  };
  const auto buckets = MakeBuckets(plan_.layers, plan_.mesh, index_, rules);
  EXPECT_EQ(buckets.size(), 4U) << "fc2/weight and fc1 are summed by two ranks and stay separate";
  EXPECT_THAT(sizes, ::testing::UnorderedElementsAre(2, 2, 2, 6));
}

TEST_F(PlanTest, BufferOfLargestRank) {
  EXPECT_EQ(BufferElements(plan_, index_, plan_.buckets[0]), 5) << "fc2/bias is whole";
  EXPECT_EQ(BufferElements(plan_, index_, plan_.buckets[1]), 5 * 2 + 2 * 2 + 2);
  EXPECT_EQ(BufferElements(plan_, index_, plan_.buckets[2]), 2 * 9 + 2);
}

TEST_F(PlanTest, ProtoRoundTrip) {
  plan_.buckets[0].algorithm = Algorithm::kButterfly;
  plan_.buckets[1].algorithm = Algorithm::kHalvingDoubling;
  EXPECT_FALSE(PlanToProto(plan_, index_).has_link()) << "not measured";
  plan_.link = {.alpha = 5e-5, .beta = 8e-10, .gamma = 1e-10};
  plan_.link.samples.push_back(
      {.algorithm = Algorithm::kButterfly, .ranks = 4, .bytes = 1024, .seconds = 1e-4});
  plan_.link_kind = v1::LinkProfile::TCP;
  const v1::Plan proto = PlanToProto(plan_, index_);
  const auto back = PlanFromProto(proto, graph_, index_);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(CheckPlan(*back, graph_, index_), absl::OkStatus()) << "layouts follow from splits";
  EXPECT_EQ(back->mesh, plan_.mesh);
  EXPECT_EQ(back->buckets[1].parameters, plan_.buckets[1].parameters);
  EXPECT_EQ(back->buckets[0].algorithm, Algorithm::kButterfly);
  EXPECT_EQ(back->link.gamma, 1e-10);
  ASSERT_EQ(back->link.samples.size(), 1U);
  EXPECT_EQ(back->link.samples[0].algorithm, Algorithm::kButterfly);
  EXPECT_EQ(back->link_kind, v1::LinkProfile::TCP);
  EXPECT_EQ(PlanToProto(*back, index_).SerializeAsString(), proto.SerializeAsString());
}

TEST_F(PlanTest, RejectsMalformedLinks) {
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_link()->set_alpha(-1); }, "link: ");
  ExpectProtoRejected(
      [](v1::Plan& p) { p.mutable_link()->add_samples()->set_algorithm(v1::Plan::Algorithm(99)); },
      "unknown algorithm 99");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_link()->set_kind(v1::LinkProfile::Kind(99)); },
                      "link: unknown kind 99");
}

TEST_F(PlanTest, RejectsMalformedMeshes) {
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_mesh(0)->set_size(0); }, "mesh axis 'data'");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_mesh(0)->set_size(0xffffffff); }, "too large");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_mesh(0)->clear_name(); }, "mesh axis ''");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_mesh(0)->set_name("model"); }, "named twice");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_mesh(0)->set_name("da\nta"); }, "'da\\nta'");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_mesh(0)->set_name(std::string(64, 'a')); },
                      "malformed");
  ExpectProtoRejected(
      [](v1::Plan& p) {
        for (int i = 0; i < 100000; ++i) {
          v1::MeshAxis* axis = p.add_mesh();
          axis->set_name(std::to_string(i));
          axis->set_size(1);
        }
      },
      "axes, more than 16");
}

TEST_F(PlanTest, RejectsMalformedLayersAndBuckets) {
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_layers()->RemoveLast(); }, "has 6 layers");
  ExpectProtoRejected([](v1::Plan& p) { p.add_layers(); }, "has 8 layers");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_layers(0)->set_layer("\x01"); }, "'\\001'");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_layers(0)->mutable_split(0)->set_axes(0, "x"); },
                      "layer 'conv': axis 'x' is not in the mesh");
  ExpectProtoRejected(
      [](v1::Plan& p) { p.mutable_layers(0)->mutable_split(0)->set_index("depth"); },
      "layer 'conv': a convolution has no index 'depth'");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_layers(0)->add_split()->set_index("samples"); },
                      "index 'samples' is split twice");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_buckets(0)->set_parameters(0, "fc2/wait"); },
                      "bucket 0: the model has no parameter 'fc2/wait'");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_buckets(1)->add_parameters("fc2/weight"); },
                      "fc2/weight is in 2 buckets");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_buckets(1)->add_axes("model"); }, "bucket 1");
  ExpectProtoRejected([](v1::Plan& p) { p.add_buckets()->set_algorithm(v1::Plan::RING); },
                      "bucket 3");
  ExpectProtoRejected([](v1::Plan& p) { p.mutable_buckets(0)->clear_algorithm(); },
                      "bucket 0: unknown algorithm 0");
  ExpectProtoRejected([](v1::Plan& p) { p.Clear(); }, "has 0 layers");
}

TEST_F(PlanTest, Prints) {
  EXPECT_EQ(PrintPlan(plan_, graph_, index_), R"(mesh {data: 2, model: 3}
  conv                 convolution           samples/data*model; {0: data*model} -> {0: data*model}
  pool                 max_pool              samples/data*model; {0: data*model} -> {0: data*model}
  flat                 flatten               samples/data*model; {0: data*model} -> {0: data*model}
  (move)               of flat: {0: data*model} -> {0: data}
  fc1                  fully_connected       samples/data, out/model; {0: data} -> {0: data, 1: model}, weight {0: model}, bias {0: model}
  relu                 relu                  samples/data, features/model; {0: data, 1: model} -> {0: data, 1: model}
  fc2                  fully_connected       samples/data, in/model; {0: data, 1: model} -> {0: data} + partial(model), weight {1: model}
  (move)               of fc2: {0: data} + partial(model) -> {0: data}
  loss                 softmax_cross_entropy samples/data; {0: data} -> partial(data)
  bucket 0 over [data] shared by [model] by ring, 20 bytes: fc2/bias
  bucket 1 over [data] by ring, 64 bytes: fc1/weight, fc1/bias, fc2/weight
  bucket 2 over [data, model] by ring, 80 bytes: conv/weight, conv/bias
)");
}

TEST_F(PlanTest, PrintsLinkAndSeconds) {
  plan_.link = {.alpha = 5e-5, .beta = 8e-10};
  plan_.link_kind = v1::LinkProfile::TCP;
  const std::string text = PrintPlan(plan_, graph_, index_);
  EXPECT_THAT(text, HasSubstr("\n  link 50.0 us a message, 1.25 GB/s, tcp\n  bucket 0 over"));
  // Two ranks sum the bucket: 50 us and 32 bytes in each direction.
  EXPECT_THAT(text, HasSubstr("  bucket 1 over [data] by ring, 64 bytes, 0.1001 ms: fc1/weight"));
}

}  // namespace
}  // namespace cadre
