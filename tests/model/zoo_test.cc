// The networks of model/zoo: that they are what their papers say, and can be run as they stand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "model/graph.h"
#include "model/parameter_index.h"
#include "model/run_file.h"
#include "model/validate.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

// Bytes, 384 features, 6 blocks, 128 positions.
constexpr int64_t kV = 256, kD = 384, kBlocks = 6, kT = 128;
// Two norms, attention with its biases, two products with theirs.
constexpr int64_t kBlock = 2 * 2 * kD + (3 * kD * kD + 3 * kD) + (kD * kD + kD) +
                           (4 * kD * kD + 4 * kD) + (4 * kD * kD + kD);
constexpr int64_t kGpt = kV * kD + kT * kD + kBlocks * kBlock + 2 * kD + kD * kV;

struct Network {
  const char* name;
  // Trained: without running statistics.
  int64_t parameters;
  // Of those, the ones of weights: neither biases nor of norms.
  int64_t weights;
  // Of the loss.
  int64_t classes;
  Shape input;
  // Multiply-adds of one sample forward, of convolutions and fully connected layers in
  // thousands of millions, to two decimals.
  double giga_multiply_adds;
};

// Counts of parameters are those of the same networks in PyTorch.
const Network kNetworks[] = {
    {"mlp", 20'037'642, 20'029'440, 10, {28, 28, 1}, 0.02},
    {"lenet", 3'241'354, 3'240'224, 10, {28, 28, 1}, 0.01},
    {"alexnet", 62'378'344, 62'367'776, 1000, {227, 227, 3}, 1.14},
    {"vgg11", 132'863'336, 132'851'392, 1000, {224, 224, 3}, 7.61},
    {"vgg16", 138'357'544, 138'344'128, 1000, {224, 224, 3}, 15.47},
    {"resnet18", 11'689'512, 11'678'912, 1000, {224, 224, 3}, 1.81},
    {"resnet50", 25'557'032, 25'502'912, 1000, {224, 224, 3}, 4.09},
    {"inception-v3", 23'834'568, 23'799'136, 1000, {299, 299, 3}, 5.71},
    {"gpt",
     kGpt,
     kV* kD + kT* kD + kBlocks * 12 * kD* kD + kD* kV,
     kV,
     {kT},
     1e-9 * kT*(kBlocks * 8 * kD * kD + kD * kV)},
};

std::string PathOf(const std::string& name) {
  return testing::ZooFolder() + "/" + name + ".textproto";
}

class Zoo : public ::testing::TestWithParam<Network> {};

TEST_P(Zoo, IsValid) {
  const auto file = ReadRunSpec(PathOf(GetParam().name));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Refuse(FindProblems(file->spec)), absl::OkStatus());
  EXPECT_EQ(file->spec.name(), GetParam().name);
  EXPECT_TRUE(file->spec.model().block().empty());
}

TEST_P(Zoo, ShapesMatchPaper) {
  const auto file = ReadRunSpec(PathOf(GetParam().name));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto graph = Graph::FromModel(file->spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->input(), GetParam().input);
  EXPECT_EQ(graph->classes(), GetParam().classes);
  int64_t trained = 0;
  int64_t weights = 0;
  const ParameterIndex index = ParameterIndex::FromGraph(*graph);
  for (const Parameter& parameter : index.parameters()) {
    if (IsStatistic(parameter.role)) continue;
    trained += parameter.shape.elements();
    if (parameter.role == ParameterRole::kWeight) weights += parameter.shape.elements();
  }
  EXPECT_EQ(trained, GetParam().parameters);
  EXPECT_EQ(weights, GetParam().weights);
}

TEST_P(Zoo, DoesTheWorkOfItsPaper) {
  const auto file = ReadRunSpec(PathOf(GetParam().name));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto graph = Graph::FromModel(file->spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  int64_t flops = 0;
  for (const GraphLayer& layer : graph->layers()) {
    if (layer.kind == LayerKind::kConvolution || layer.kind == LayerKind::kFullyConnected) {
      flops += layer.flops;
    }
  }
  EXPECT_NEAR(static_cast<double>(flops) / 2e9, GetParam().giga_multiply_adds, 0.005);
}

INSTANTIATE_TEST_SUITE_P(Each, Zoo, ::testing::ValuesIn(kNetworks), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(ZooTest, EveryFileIsTested) {
  std::set<std::string> tested;
  for (const Network& network : kNetworks) tested.insert(PathOf(network.name));
  std::set<std::string> there;
  for (const auto& entry : std::filesystem::directory_iterator(testing::ZooFolder())) {
    there.insert(entry.path().string());
  }
  EXPECT_EQ(there, tested);
}

std::vector<std::string> NamesOf(const std::string& network) {
  const auto file = ReadRunSpec(PathOf(network));
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  if (!file.ok()) return names;
  for (const v1::Layer& layer : file->spec.model().layer()) names.push_back(layer.name());
  return names;
}

TEST(ZooTest, LayersAreNamedByTheirPlace) {
  EXPECT_THAT(NamesOf("resnet18"),
              ::testing::IsSupersetOf({"conv1", "stage1_2/branch/conv2", "stage2_1/branch/bn1",
                                       "stage2_1/projection", "stage4_2/add", "fc"}));
  EXPECT_THAT(NamesOf("gpt"), ::testing::IsSupersetOf({"block1/attention", "block6/add2", "head"}));
}

// The last layer before the classifier has 2048 channels of 8 x 8 (Szegedy et al. 2016, table 1).
TEST(ZooTest, InceptionShapesMatchPaper) {
  const auto file = ReadRunSpec(PathOf("inception-v3"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto graph = Graph::FromModel(file->spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto output_of = [&](const std::string& name) {
    for (const GraphLayer& layer : graph->layers()) {
      if (layer.name == name) return layer.output;
    }
    return Shape{};
  };
  EXPECT_EQ(output_of("pool1"), (Shape{73, 73, 64}));
  EXPECT_EQ(output_of("pool2"), (Shape{35, 35, 192}));
  EXPECT_EQ(output_of("mixed3/concat"), (Shape{35, 35, 288}));
  EXPECT_EQ(output_of("mixed8/concat"), (Shape{17, 17, 768}));
  EXPECT_EQ(output_of("mixed9/concat"), (Shape{8, 8, 1280}));
  EXPECT_EQ(output_of("mixed11/concat"), (Shape{8, 8, 2048}));
}

}  // namespace
}  // namespace cadre
