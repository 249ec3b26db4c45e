#include "spec/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/spec/testing.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = R"(model {
  input { channels: 1 height: 4 width: 4 }
  layer { name: "conv" convolution { out_channels: 2 kernel: 3 } }
  layer { name: "pool" max_pool { kernel: 2 } }
  layer { name: "fc" fully_connected { out_features: 6 } }
  layer { name: "relu" relu {} }
  layer { name: "loss" softmax_cross_entropy {} }
})";

// {data: 2, model: 3}: images split over all, fc over both.
class PlanTest : public ::testing::Test {
 protected:
  PlanTest()
      : model_(testing::SpecOf(kModel).model()),
        graph_(*Graph::FromModel(model_)),
        index_(*ParameterIndex::FromModel(model_)) {
    const Layout all = Layout::Split(0, {"data", "model"});
    const Layout both{.split = {{"data"}, {"model"}}};
    const Layout rows = Layout::Split(0, {"model"});
    plan_.mesh = Mesh({{"data", 2}, {"model", 3}});
    plan_.layers = {
        {"conv", all, all, {Layout::Replicated(), Layout::Replicated()}}, {"pool", all, all, {}},
        {"fc", Layout::Split(0, {"data"}), both, {rows, rows}},           {"relu", both, both, {}},
        {"loss", Layout::Split(0, {"data"}), Layout::Replicated(), {}},
    };
    plan_.buckets = {{{2, 3}, {"data"}, "ring"}, {{0, 1}, {"data", "model"}, "ring"}};
  }

  absl::Status Check() const { return CheckPlan(plan_, graph_, index_); }

  // The plan after `change` is refused with these words.
  void ExpectRefused(const std::function<void(Plan&)>& change, const std::string& words) {
    const Plan good = plan_;
    change(plan_);
    const absl::Status status = Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    plan_ = good;
  }

  const v1::Model model_;
  const Graph graph_;
  const ParameterIndex index_;
  Plan plan_;
};

TEST_F(PlanTest, TheGoodPlanIsLegal) { EXPECT_EQ(Check(), absl::OkStatus()); }

TEST_F(PlanTest, EverythingMayBeWhole) {
  plan_.mesh = Mesh();
  for (LayerLayouts& layer : plan_.layers) {
    layer.input = layer.output = Layout::Replicated();
    for (Layout& parameter : layer.parameters) parameter = Layout::Replicated();
  }
  for (Bucket& bucket : plan_.buckets) bucket.axes.clear();
  EXPECT_EQ(Check(), absl::OkStatus());
}

TEST_F(PlanTest, FeaturesMayBeSplitOverSeveralAxes) {
  const Layout rows = Layout::Split(0, {"data", "model"});
  const Layout features{.split = {{}, {"data", "model"}}};
  plan_.layers[2] = {"fc", Layout::Replicated(), features, {rows, rows}};
  plan_.layers[3].input = plan_.layers[3].output = features;
  plan_.buckets[0].axes.clear();
  EXPECT_EQ(Check(), absl::OkStatus());
}

TEST_F(PlanTest, LayersMustBeTheModels) {
  ExpectRefused([](Plan& p) { p.layers.pop_back(); }, "the plan has 4 layers, the model 5");
  ExpectRefused([](Plan& p) { p.layers[1].name = "pooh"; },
                "the plan has layer 'pooh' where the model has 'pool'");
  ExpectRefused([](Plan& p) { p.layers[0].parameters.pop_back(); }, "lays out 1 parameters");
  ExpectRefused([](Plan& p) { p.layers[1].parameters.resize(2); }, "lays out 2 parameters");
}

TEST_F(PlanTest, AxesMustBeTheMeshs) {
  ExpectRefused([](Plan& p) { p.layers[2].output.split[1] = {"modal"}; },
                "axis 'modal' of {0: data, 1: modal} is not in the mesh");
  ExpectRefused([](Plan& p) { p.layers[2].output.split[1] = {"data"}; }, "is used twice");
  ExpectRefused(
      [](Plan& p) {
        p.layers[0].input = Layout::Split(0, {"data", "data"});
      },
      "is used twice");
  ExpectRefused([](Plan& p) { p.layers[2].parameters[1] = Layout::Split(0, {"x"}); },
                "axis 'x' of {0: x} is not in the mesh");
}

TEST_F(PlanTest, ImagesAreSplitBySamplesOnly) {
  for (const size_t layer : {0U, 1U}) {
    ExpectRefused(
        [=](Plan& p) {
          p.layers[layer].input = p.layers[layer].output = Layout::Split(2, {"data"});
        },
        "cannot take {2: data} to {2: data}");
    ExpectRefused([=](Plan& p) { p.layers[layer].output = Layout::Split(0, {"data"}); },
                  "cannot take {0: data*model} to {0: data}");
  }
  ExpectRefused([](Plan& p) { p.layers[0].parameters[0] = Layout::Split(0, {"model"}); },
                "with weight {0: model}");
  ExpectRefused([](Plan& p) { p.layers[0].parameters[1].partial_sum = {"model"}; },
                "layer 'conv': a convolution");
}

TEST_F(PlanTest, FullyConnectedFollowsTheTable) {
  ExpectRefused(
      [](Plan& p) {
        p.layers[2].input = Layout{.split = {{"data"}, {"model"}}};
      },
      "layer 'fc': a fully_connected cannot take");
  ExpectRefused([](Plan& p) { p.layers[2].output = Layout::Split(0, {"data"}); },
                "layer 'fc'");  // weights split, output not
  ExpectRefused([](Plan& p) { p.layers[2].parameters[0] = Layout::Split(1, {"model"}); },
                "with weight {1: model}");
  ExpectRefused([](Plan& p) { p.layers[2].parameters[1] = Layout::Replicated(); }, "layer 'fc'");
  ExpectRefused([](Plan& p) { p.layers[2].output.split[0].clear(); }, "layer 'fc'");
  ExpectRefused(
      [](Plan& p) {
        p.layers[2].input = Layout::Split(0, {"model"});
        p.layers[2].output.split[0] = {"model"};
      },
      "is used twice");
  ExpectRefused([](Plan& p) { p.layers[2].output.partial_sum = {"model"}; }, "layer 'fc'");
}

TEST_F(PlanTest, ElementwiseAndLossFollowTheTable) {
  ExpectRefused([](Plan& p) { p.layers[3].output = Layout::Split(0, {"data"}); }, "layer 'relu'");
  ExpectRefused(
      [](Plan& p) { p.layers[3].input.partial_sum = p.layers[3].output.partial_sum = {"model"}; },
      "layer 'relu'");
  ExpectRefused(
      [](Plan& p) {
        p.layers[4].input = Layout{.split = {{"data"}, {"model"}}};
      },
      "a softmax_cross_entropy cannot take");
}

// Ranks that hold the same parameters and see the same samples would all own them.
TEST_F(PlanTest, AnAxisMustSplitSamplesOrParameters) {
  ExpectRefused(
      [](Plan& p) {
        p.layers[0].input = p.layers[0].output = Layout::Split(0, {"data"});
        p.buckets[1].axes = {"data"};
      },
      "layer 'conv': axis 'model' splits neither its samples nor its parameters");
  ExpectRefused(
      [](Plan& p) {
        p.layers[2].output = Layout::Split(0, {"data"});
        p.layers[2].parameters.assign(2, Layout::Replicated());
      },
      "layer 'fc': axis 'model'");
}

TEST_F(PlanTest, BucketsHoldEveryParameterOnce) {
  ExpectRefused([](Plan& p) { p.buckets.pop_back(); }, "conv/weight is in 0 buckets");
  ExpectRefused([](Plan& p) { p.buckets[0].parameters = {2}; }, "fc/bias is in 0 buckets");
  ExpectRefused([](Plan& p) { p.buckets.push_back(p.buckets[0]); }, "fc/weight is in 2 buckets");
  ExpectRefused([](Plan& p) { p.buckets[0].parameters = {3, 2}; }, "not in the order");
  ExpectRefused(
      [](Plan& p) {
        p.buckets[0].axes = {"data", "model"};
      },
      "reduces over [data, model], but fc/weight needs [data]");
  ExpectRefused([](Plan& p) { p.buckets[1].axes = {"model", "data"}; }, "needs [data, model]");
  ExpectRefused([](Plan& p) { p.buckets[1].algorithm = "butterfly"; },
                "algorithm 'butterfly' is not known");
}

TEST_F(PlanTest, GoesThroughTheProtocolUnchanged) {
  const v1::Plan proto = PlanToProto(plan_, index_);
  const auto back = PlanFromProto(proto, index_);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->mesh, plan_.mesh);
  ASSERT_EQ(back->layers.size(), plan_.layers.size());
  for (size_t l = 0; l < plan_.layers.size(); ++l) {
    EXPECT_EQ(back->layers[l].name, plan_.layers[l].name);
    EXPECT_EQ(back->layers[l].input, plan_.layers[l].input);
    EXPECT_EQ(back->layers[l].output, plan_.layers[l].output);
    EXPECT_EQ(back->layers[l].parameters, plan_.layers[l].parameters);
  }
  ASSERT_EQ(back->buckets.size(), 2U);
  EXPECT_EQ(back->buckets[1].parameters, plan_.buckets[1].parameters);
  EXPECT_EQ(back->buckets[1].axes, plan_.buckets[1].axes);
  EXPECT_EQ(PlanToProto(*back, index_).SerializeAsString(), proto.SerializeAsString());
}

TEST_F(PlanTest, MalformedMessagesAreRefused) {
  const v1::Plan good = PlanToProto(plan_, index_);
  const auto refused = [&](const std::function<void(v1::Plan&)>& change) {
    v1::Plan proto = good;
    change(proto);
    const absl::StatusCode code = PlanFromProto(proto, index_).status().code();
    return code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kNotFound;
  };
  EXPECT_FALSE(refused([](v1::Plan&) {}));
  EXPECT_TRUE(refused([](v1::Plan& p) { p.mutable_mesh(0)->set_size(0); }));
  EXPECT_TRUE(refused([](v1::Plan& p) { p.mutable_mesh(0)->set_size(0xffffffff); }));
  EXPECT_TRUE(refused([](v1::Plan& p) { p.mutable_mesh(0)->clear_name(); }));
  EXPECT_TRUE(refused([](v1::Plan& p) { p.mutable_mesh(0)->set_name("model"); }));
  EXPECT_TRUE(refused([](v1::Plan& p) { p.mutable_buckets(0)->set_parameters(0, "fc/wait"); }));
  EXPECT_TRUE(refused(
      [](v1::Plan& p) { p.mutable_layers(0)->mutable_parameters(0)->set_parameter("conv/wait"); }));
}

TEST_F(PlanTest, PrintsForPeople) {
  EXPECT_EQ(PrintPlan(plan_, graph_, index_), R"(mesh {data: 2, model: 3}
  conv         convolution            {0: data*model} -> {0: data*model}, weight replicated
  pool         max_pool               {0: data*model} -> {0: data*model}
  (reshard)    {0: data*model} -> {0: data}
  fc           fully_connected        {0: data} -> {0: data, 1: model}, weight {0: model}
  relu         relu                   {0: data, 1: model} -> {0: data, 1: model}
  (reshard)    {0: data, 1: model} -> {0: data}
  loss         softmax_cross_entropy  {0: data} -> replicated
  bucket 0: fc/weight, fc/bias over [data] by ring
  bucket 1: conv/weight, conv/bias over [data, model] by ring
)");
}

}  // namespace
}  // namespace cadre
