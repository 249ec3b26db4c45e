// Tests that the networks of model/zoo are valid and have the sizes stated in their papers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
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

// GPT: a vocabulary of 256 bytes, 384 features, 6 blocks, 128 positions.
constexpr int64_t kV = 256, kD = 384, kGptBlocks = 6, kT = 128;
// Parameters of a block: two norms, attention and two fully connected layers with their biases.
constexpr int64_t kBlock = 2 * 2 * kD + (3 * kD * kD + 3 * kD) + (kD * kD + kD) +
                           (4 * kD * kD + 4 * kD) + (4 * kD * kD + kD);
constexpr int64_t kGpt = kV * kD + kT * kD + kGptBlocks * kBlock + 2 * kD + kD * kV;

// BIG LSTM: a vocabulary of 8192, 2048 cells projected to 256, 2 layers, 20 tokens.
constexpr int64_t kBigVocabulary = 8192, kCells = 2048, kProjected = 256, kBigTokens = 20,
                  kBigSampled = 512;
constexpr int64_t kBigWeights =
    2 * kBigVocabulary * kProjected + 2 * (4 * kCells * 2 * kProjected + kCells * kProjected);

// GNMT: a vocabulary of 2048, 256 features, 32 tokens of source and target each. The weights of the
// LSTM layers: five take 256 features, four take two sequences of 256.
constexpr int64_t kWords = 2048, kF = 256, kTarget = 32;
constexpr int64_t kGnmtWeights =
    2 * kWords * kF + kF * kF + 5 * 4 * kF * (2 * kF) + 4 * 4 * kF * (3 * kF);

struct Network {
  const char* name;
  // Trained parameters, without running statistics.
  int64_t parameters;
  // Parameters of the role kWeight: neither biases nor parameters of norms.
  int64_t weights;
  int64_t classes;
  Shape input;
  // 10^9 multiply-adds of convolutions and fully connected layers in the forward pass of one
  // sample.
  double giga_multiply_adds;
};

// Counts of parameters are those of the same networks in PyTorch, with one bias in each LSTM.
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
     kV* kD + kT* kD + kGptBlocks * 12 * kD* kD + kD* kV,
     kV,
     {kT},
     1e-9 * kT*(kGptBlocks * 8 * kD * kD + kD * kV)},
    {"biglstm",
     kBigWeights + 2 * 4 * kCells + kBigVocabulary,
     kBigWeights,
     kBigVocabulary,
     {kBigTokens},
     1e-9 * kBigTokens*(kProjected*(1 + kBigSampled))},
    {"gnmt",
     kGnmtWeights + 9 * 4 * kF + kWords,
     kGnmtWeights,
     kWords,
     {2 * kTarget},
     1e-9 * kTarget*(kF* kF + kF * kWords)},
};

std::string PathOf(const std::string& name) {
  return testing::ZooFolder() + "/" + name + ".textproto";
}

Graph ZooGraph(const std::string& name) {
  const auto graph = Graph::FromModel(ReadRunSpec(PathOf(name))->spec.model());
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.value_or(Graph());
}

class Zoo : public ::testing::TestWithParam<Network> {
 protected:
  const Graph graph_ = ZooGraph(GetParam().name);
};

TEST_P(Zoo, IsValid) {
  const auto file = ReadRunSpec(PathOf(GetParam().name));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Refuse(FindProblems(file->spec)), absl::OkStatus());
  EXPECT_EQ(file->spec.name(), GetParam().name);
}

TEST_P(Zoo, ShapesMatchPaper) {
  EXPECT_EQ(graph_.input(), GetParam().input);
  EXPECT_EQ(graph_.classes(), GetParam().classes);
  int64_t trained = 0;
  int64_t weights = 0;
  const ParameterIndex index = ParameterIndex::FromGraph(graph_);
  for (const Parameter& parameter : index.parameters()) {
    if (IsStatistic(parameter.role)) continue;
    trained += parameter.shape.elements();
    if (parameter.role == ParameterRole::kWeight) weights += parameter.shape.elements();
  }
  EXPECT_EQ(trained, GetParam().parameters);
  EXPECT_EQ(weights, GetParam().weights);
}

TEST_P(Zoo, OperationsMatchPaper) {
  int64_t flops = 0;
  for (const GraphLayer& layer : graph_.layers()) {
    if (layer.kind == LayerKind::kConvolution || layer.kind == LayerKind::kFullyConnected) {
      flops += layer.flops;
    }
  }
  EXPECT_NEAR(flops / 2e9, GetParam().giga_multiply_adds, 0.005);
}

INSTANTIATE_TEST_SUITE_P(Each, Zoo, ::testing::ValuesIn(kNetworks), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(ZooTest, EveryFileIsTested) {
  std::set<std::string> tested;
  for (const Network& network : kNetworks) tested.insert(PathOf(network.name));
  std::set<std::string> existing;
  for (const auto& entry : std::filesystem::directory_iterator(testing::ZooFolder())) {
    existing.insert(entry.path().string());
  }
  EXPECT_EQ(existing, tested);
}

TEST(ZooTest, LayersHavePathsOfBlocksAsNames) {
  const auto names = [](const std::string& network) {
    std::vector<std::string> names;
    const Graph graph = ZooGraph(network);
    for (const GraphLayer& layer : graph.layers()) names.push_back(layer.name);
    return names;
  };
  EXPECT_THAT(names("resnet18"),
              ::testing::IsSupersetOf({"conv1", "stage1_2/branch/conv2", "stage2_1/branch/bn1",
                                       "stage2_1/projection", "stage4_2/add", "fc"}));
  EXPECT_THAT(names("gpt"), ::testing::IsSupersetOf({"block1/attention", "block6/add2", "head"}));
}

// Szegedy et al. 2016, table 1.
TEST(ZooTest, InceptionShapesMatchPaper) {
  std::map<std::string, Shape> outputs;
  const Graph graph = ZooGraph("inception-v3");
  for (const GraphLayer& layer : graph.layers()) {
    outputs[layer.name] = layer.output;
  }
  EXPECT_EQ(outputs["pool1"], (Shape{73, 73, 64}));
  EXPECT_EQ(outputs["pool2"], (Shape{35, 35, 192}));
  EXPECT_EQ(outputs["mixed3/concat"], (Shape{35, 35, 288}));
  EXPECT_EQ(outputs["mixed8/concat"], (Shape{17, 17, 768}));
  EXPECT_EQ(outputs["mixed9/concat"], (Shape{8, 8, 1280}));
  EXPECT_EQ(outputs["mixed11/concat"], (Shape{8, 8, 2048}));
}

}  // namespace
}  // namespace cadre
