// Every worked number of the papers, by the program itself: `cadre formula`, `cadre plan` and
// `cadre plan --placement`.
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace cadre {
namespace {

// The arguments of a call, a JSON pointer into its output, and the expected value.
struct Worked {
  std::string arguments;
  const char* field;
  double value;
  // Half of the last digit that the paper states; 0: exact up to rounding.
  double within = 0;
};

class WorkedNumbersTest : public ProgramTest {
 protected:
  // Calls the program once for the same arguments.
  const nlohmann::json& Ask(const std::string& arguments) {
    const auto [at, is_new] = answers_.try_emplace(arguments);
    if (!is_new) return at->second;
    const Result result = Run(absl::StrCat(arguments, " -o json"));
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    at->second = nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    return at->second;
  }

  double Number(const std::string& arguments, const std::string& field) {
    const nlohmann::json& answer = Ask(arguments);
    const nlohmann::json::json_pointer at(field);
    if (!answer.contains(at) || !answer[at].is_number()) {
      ADD_FAILURE() << arguments << " has no number " << field << ": " << answer;
      return std::nan("");
    }
    return answer[at];
  }

  void Check(const std::vector<Worked>& all) {
    for (const Worked& worked : all) {
      const double value = Number(worked.arguments, worked.field);
      const double within = worked.within > 0 ? worked.within : 1e-12 * std::abs(worked.value);
      EXPECT_NEAR(value, worked.value, within) << worked.arguments << " " << worked.field;
    }
  }

  // Parameters of the layers of one kind, biases and all, by the buckets of a plan that keeps the
  // layers apart.
  double Parameters(const std::string& model, const std::string& prefix) {
    double bytes = 0;
    for (const nlohmann::json& bucket :
         Ask(absl::StrCat("plan ", model, " --workers 2 --model_ranks 1 --bucket_elements 1"))
             .at("buckets")) {
      const std::string name = bucket["parameters"][0];
      if (name.starts_with(prefix)) bytes += bucket["bytes"].get<double>();
    }
    return bytes / 4;
  }

 private:
  std::map<std::string, nlohmann::json> answers_;
};

std::string Plan(const std::string& model, int workers, int batch, const std::string& strategy) {
  return absl::StrCat("plan ", model, " --workers ", workers, " --batch ", batch,
                      " --alpha 2e-6 --bandwidth 6e9 --nosensitivity --strategy ", strategy);
}

// --- group hybrid parallelism (Joo, Youn 2021) ---

TEST_F(WorkedNumbersTest, GroupHybrid) {
  const std::string hybrid = "group-hybrid";
  Check({
      {Plan("alexnet", 16, 512, hybrid), "/g_star", 10.11, 5e-3},
      {Plan("alexnet", 16, 512, hybrid), "/mesh/model", 8},
      {Plan("alexnet", 16, 512, "batch"), "/words_per_rank", 116'939'580},
      {Plan("alexnet", 16, 512, hybrid), "/words_per_rank", 22'373'948},
      {Plan("alexnet", 64, 2048, hybrid), "/g_star", 10.11, 5e-3},
      {Plan("alexnet", 64, 2048, hybrid), "/mesh/model", 8},
      {Plan("alexnet", 64, 2048, "batch"), "/words_per_rank", 122'786'559},
      {Plan("alexnet", 64, 2048, hybrid), "/words_per_rank", 28'220'927},
      {Plan("alexnet", 512, 2048, hybrid), "/g_star", 28.61, 5e-3},
      {Plan("alexnet", 512, 2048, hybrid), "/mesh/model", 32},
      {Plan("alexnet", 512, 2048, "batch"), "/words_per_rank", 124'491'927.875},
      {Plan("alexnet", 512, 2048, hybrid), "/words_per_rank", 15'353'079.875},
      {Plan("vgg16", 16, 256, hybrid), "/g_star", 15.12, 5e-3},
      {Plan("vgg16", 16, 512, hybrid), "/g_star", 10.69, 5e-3},
      {"formula group weights=123633664 samples=16 activations=67560", "/g_star", 15.12, 5e-3},
      {"formula group weights=58621952 samples=32 activations=35816", "/g_star", 10.11, 5e-3},
      {Plan("alexnet", 16, 512, "batch"), "/parameter_state_bytes", 748.4e6, 0.05e6},
      {Plan("alexnet", 16, 512, hybrid), "/parameter_state_bytes", 132.9e6, 0.05e6},
      {Plan("alexnet", 512, 2048, hybrid), "/parameter_state_bytes", 66.9e6, 0.05e6},
  });
}

// The three times of the model, of a network given by its layers.
TEST_F(WorkedNumbersTest, TimesOfAlexNetInGroups) {
  const std::string layers =
      "weights=34848,614400,884736,1327104,884736,37748736,16777216,4096000 "
      "inputs=154587,69984,43264,64896,64896,9216,4096,4096 "
      "outputs=290400,186624,64896,64896,43264,4096,4096,1000 convolutions=5 ";
  const std::string arguments = absl::StrCat("formula group-hybrid workers=512 samples=4 group=32 ",
                                             layers, "alpha=2e-6 bandwidth=6e9");
  const double model = 511.0 / 512 * 2048 * (659'272 + 260'448 + 154'587);
  Check({
      {arguments, "/g_star", 28.61, 5e-3},
      {arguments, "/data_parallel_words", 124'491'927.875},
      {arguments, "/data_parallel_seconds", 18 * 2e-6 + 124'491'927.875 * 4 / 6e9},
      {arguments, "/model_parallel_words", model},
      {arguments, "/model_parallel_seconds", 16 * 9 * 2e-6 + model * 4 / 6e9},
      {arguments, "/group_hybrid_words", 15'353'079.875},
      {arguments, "/state_bytes", 66.9e6, 0.05e6},
      {arguments + " operations=1e9 flops=1e12", "/data_parallel_seconds",
       18 * 2e-6 + 124'491'927.875 * 4 / 6e9 + 3 * 4e-3},
  });
  EXPECT_DOUBLE_EQ(Number(arguments, "/group_hybrid_seconds"),
                   Number(Plan("alexnet", 512, 2048, "group-hybrid"), "/communication_seconds"));
}

// --- when to split the model (Pal et al. 2019) ---

TEST_F(WorkedNumbersTest, WhenToSplit) {
  const std::string rule = "formula hybrid-rule devices=2 epochs=4 speedup=1.32";
  const std::string seven = rule + " more_epochs=7";
  const std::string slower = seven + " efficiency=0.95 more_efficiency=0.90";
  Check({
      {seven, "/threshold", 1.142857, 5e-7},
      {seven, "/gain", 1.155, 5e-7},
      {rule + " more_epochs=5", "/threshold", 1.6},
      {slower, "/threshold", 1.082707, 5e-7},
      {slower, "/gain", 1.219167, 5e-7},
      {seven + " workers=8 epochs_of_one=4", "/hybrid_speedup", 1.32 * 8},
      {seven + " workers=8 epochs_of_one=4", "/data_speedup", 16 * 4.0 / 7},
  });
  EXPECT_LT(Number(rule + " more_epochs=5", "/gain"), 1) << "data parallelism";
  const std::string both = slower + " workers=8 epochs_of_one=4";
  EXPECT_NEAR(Number(both, "/hybrid_speedup") / Number(both, "/data_speedup"), 1.219167, 5e-7);
}

TEST_F(WorkedNumbersTest, TheDiamond) {
  const double makespans[] = {8, 9, 10, 11, 11};
  for (int x = 0; x <= 4; ++x) {
    const std::string file = absl::StrCat("diamond", x, ".textproto");
    std::ofstream out(absl::StrCat(folder_, "/", file));
    out << "op { name: 'a' seconds: 2 } op { name: 'b' seconds: 4 }\n"
           "op { name: 'c' seconds: 3 } op { name: 'd' seconds: 2 }\n"
           "device { name: 'one' } device { name: 'two' }\n"
           "link { from: 'one' to: 'two' bandwidth: 1 }\n";
    for (const char* ends :
         {"from: 'a' to: 'b'", "from: 'a' to: 'c'", "from: 'b' to: 'd'", "from: 'c' to: 'd'"}) {
      out << "edge { " << ends << " bytes: " << x << " }\n";
    }
    out.close();
    const std::string arguments = "plan --placement " + file;
    Check({{arguments, "/makespan", makespans[x]}, {arguments, "/serial_seconds", 11}});
    EXPECT_EQ(Ask(arguments)["method"], "exact");
    if (x == 1) Check({{arguments, "/speedup", 1.2222, 5e-5}});
  }
}

// --- averaging between groups (Lee et al. 2020) ---

TEST_F(WorkedNumbersTest, HierarchicalAveraging) {
  const auto averaging = [](int groups, int ranks) {
    return absl::StrCat("formula averaging parameters=25557032 groups=", groups, " ranks=", ranks,
                        " tau=8 samples=1281167 batch=256");
  };
  const std::string of_64 = averaging(8, 8);
  Check({
      {of_64, "/naive_across_words", 44'724'806},
      {of_64, "/across_words", 5'590'600.75},
      {averaging(16, 8), "/naive_across_words", 47'919'435},
      {averaging(16, 8), "/across_words", 5'989'929.375},
      {averaging(16, 32), "/naive_across_words", 47'919'435},
      {averaging(16, 32), "/across_words", 1'497'482.34375},
      {of_64, "/step_words", 44'724'806},
      {of_64, "/hierarchical_step_words", 45'423'631.09375},
      {of_64, "/synchronous_step_words", 50'315'406.75},
      {of_64, "/synchronous_steps", 5'004},
      {of_64, "/hierarchical_steps", 625},
      {of_64, "/epoch_saving", 8.869, 5e-4},
      {of_64, "/saving_across", 8 * 7.0 / 8},
      {of_64, "/synchronous_bytes_across_per_step", 2.0 * 7 * 25'557'032 * 4},
  });
  for (const auto& [groups, ranks] : {std::pair(8, 8), std::pair(16, 8), std::pair(16, 32)}) {
    const std::string arguments = averaging(groups, ranks);
    EXPECT_DOUBLE_EQ(Number(arguments, "/naive_across_words") / Number(arguments, "/across_words"),
                     ranks);
  }
  const std::string fc6 = "formula activations ranks=8 batch=256 inputs=9216 outputs=4096";
  Check({
      {fc6, "/gradient_words", 33'030'144},
      {fc6, "/activation_words", 1'175'552},
      {fc6, "/ratio", 28.1, 0.05},
      {"formula discrepancy signal=1 noise=4 groups=2", "/gamma", 0.667, 5e-4},
      {"formula discrepancy signal=1 noise=4 groups=4", "/gamma", 1.5},
      {"formula discrepancy signal=1 noise=4 groups=8", "/gamma", 2.333, 5e-4},
      {"formula discrepancy signal=1 noise=4 groups=16", "/gamma", 3.0},
  });
}

// --- hybrid all-reduce and overlap (Kim, Yeo, Oh 2021) ---

TEST_F(WorkedNumbersTest, RingAndButterfly) {
  const auto limit = [](int ranks) {
    return absl::StrCat("formula butterfly-limit ranks=", ranks, " alpha=1 bandwidth=1");
  };
  const std::string link = " ranks=8 alpha=50e-6 bandwidth=1.25e9";
  Check({
      {limit(2), "/butterfly_always", 1},
      {limit(4), "/butterfly_always", 0},
      {limit(4), "/bytes_over_alpha_beta", 8.0},
      {limit(8), "/bytes_over_alpha_beta", 8.8},
      {limit(16), "/bytes_over_alpha_beta", 12.24, 5e-3},
      {limit(32), "/bytes_over_alpha_beta", 18.61, 5e-3},
      {limit(64), "/bytes_over_alpha_beta", 29.77, 5e-3},
      {"formula butterfly-limit" + link, "/bytes", 550'000},
      {"formula ring bytes=139392" + link, "/seconds", 0.8951e-3, 5e-8},
      {"formula butterfly bytes=139392" + link, "/seconds", 0.4845e-3, 5e-8},
      {"formula halving-doubling bytes=139392" + link, "/seconds", 0.4951e-3, 5e-8},
      {"formula ring bytes=3538944" + link, "/seconds", 5.6545e-3, 5e-8},
      {"formula butterfly bytes=3538944" + link, "/seconds", 8.6435e-3, 5e-8},
      {"formula halving-doubling bytes=3538944" + link, "/seconds", 5.2545e-3, 5e-8},
      {"formula ring bytes=150994944" + link, "/seconds", 212.09e-3, 5e-6},
      {"formula butterfly bytes=150994944" + link, "/seconds", 362.54e-3, 5e-6},
      {"formula halving-doubling bytes=150994944" + link, "/seconds", 211.69e-3, 5e-6},
  });
}

TEST_F(WorkedNumbersTest, Overlap) {
  const auto overlap = [](const std::string& backward, const std::string& communication) {
    return absl::StrCat("formula overlap forward=10,10,2,2 backward=", backward,
                        " communication=", communication);
  };
  Check({
      {overlap("60,60,4,4", "3,3,40,10"), "/seconds", 155},
      {overlap("60,60,4,4", "3,3,40,10"), "/exposed", 3},
      {overlap("60,60,4,4", "6,6,40,10"), "/seconds", 158},
      {overlap("20,20,4,4", "3,3,40,10"), "/seconds", 84},
      {overlap("20,20,4,4", "3,3,40,10"), "/serial", 128},
      {overlap("20,20,4,4", "6,6,40,10"), "/seconds", 90},
  });
}

TEST_F(WorkedNumbersTest, ParametersOfVgg16) {
  EXPECT_EQ(Parameters("vgg16", "conv"), 14'714'688);
  EXPECT_EQ(Parameters("vgg16", "fc"), 123'642'856);
}

// --- model, batch and domain on a grid (Gholami et al. 2018) ---

struct Layer {
  const char* name;
  int64_t weights;
  int64_t inputs;
  int64_t outputs;
};
constexpr Layer kLayers[] = {
    {"conv1", 34'848, 154'587, 290'400}, {"conv2", 614'400, 69'984, 186'624},
    {"conv3", 884'736, 43'264, 64'896},  {"conv4", 1'327'104, 64'896, 64'896},
    {"conv5", 884'736, 64'896, 43'264},  {"fc6", 37'748'736, 9'216, 4'096},
    {"fc7", 16'777'216, 4'096, 4'096},   {"fc8", 4'096'000, 4'096, 1'000},
};

TEST_F(WorkedNumbersTest, LayersOfAlexNet) {
  // Both limits, each with half of its last known digit.
  const struct {
    std::pair<double, double> simple;
    std::pair<double, double> exact;
  } limits[] = {
      {{0.08, 5e-3}, {0.24, 5e-3}},     {{2.19, 5e-3}, {3.76, 5e-3}},
      {{9.09, 5e-3}, {11.69, 5e-3}},    {{13.63, 5e-3}, {13.63, 5e-3}},
      {{13.63, 5e-3}, {10.22, 5e-3}},   {{6144, 0}, {3351.3, 0.05}},
      {{2730.7, 0.05}, {2730.7, 0.05}}, {{2730.7, 0.05}, {891.2, 0.05}},
  };
  const nlohmann::json& layers = Ask(Plan("alexnet", 512, 2048, "batch"))["layers"];
  ASSERT_EQ(layers.size(), std::size(kLayers));
  for (size_t l = 0; l < std::size(kLayers); ++l) {
    const Layer& layer = kLayers[l];
    EXPECT_EQ(layers[l]["layer"], layer.name);
    EXPECT_EQ(layers[l]["weights"], layer.weights) << layer.name;
    EXPECT_EQ(layers[l]["inputs_per_sample"], layer.inputs) << layer.name;
    EXPECT_EQ(layers[l]["outputs_per_sample"], layer.outputs) << layer.name;
    const std::string arguments =
        absl::StrCat("formula batch-limit weights=", layer.weights, " outputs=", layer.outputs,
                     l == 0 ? "" : absl::StrCat(" inputs=", layer.inputs));
    Check({{arguments, "/simple", limits[l].simple.first, limits[l].simple.second},
           {arguments, "/exact", limits[l].exact.first, limits[l].exact.second}});
  }
  const std::string arguments = Plan("alexnet", 512, 2048, "batch");
  Check({{arguments, "/network/weights", 62'367'776},
         {arguments, "/network/convolution_weights", 3'745'824},
         {arguments, "/network/outputs_per_sample", 659'272},
         {arguments, "/network/inputs_per_sample", 260'448}});
}

TEST_F(WorkedNumbersTest, GridsOfAlexNet) {
  const std::string batch = Plan("alexnet", 512, 2048, "batch");
  const std::string model = Plan("alexnet", 512, 2048, "model");
  Check({{batch, "/words_per_rank", 124'491'927.875},
         {batch, "/alpha_messages", 144},
         {batch, "/communication_seconds", 83.2826e-3, 5e-8},
         {model, "/words_per_rank", 2'412'263'392},
         {model, "/communication_seconds", 1608.57e-3, 5e-6}});
  const struct {
    int rows;
    double words[3];
    double milliseconds[3];
  } grids[] = {
      {2, {66'844'823.875, 66'046'007.875, 66'649'503.875}, {44.863, 44.325, 44.747}},
      {4, {45'102'279.875, 37'087'095.875, 38'294'087.875}, {30.380, 25.025, 25.849}},
      {8, {48'393'023.875, 23'135'735.875, 25'549'719.875}, {32.586, 15.730, 17.359}},
      {16, {78'362'427.875, 17'216'247.875, 22'044'215.875}, {52.578, 11.789, 15.028}},
      {32, {149'995'193.875, 16'368'887.875, 26'024'823.875}, {100.34, 11.231, 17.688}},
  };
  const char* const strategies[] = {"uniform-grid", "conv-batch-fc-grid", "conv-domain-fc-grid"};
  for (const auto& grid : grids) {
    for (int s = 0; s < 3; ++s) {
      const std::string arguments =
          Plan("alexnet", 512, 2048,
               absl::StrCat(strategies[s], " --mesh data=", 512 / grid.rows, ",",
                            s == 2 ? "space" : "model", "=", grid.rows));
      const double last_digit = grid.milliseconds[s] > 100 ? 5e-3 : 5e-4;
      Check(
          {{arguments, "/words_per_rank", grid.words[s]},
           {arguments, "/communication_seconds", 1e-3 * grid.milliseconds[s], 1e-3 * last_digit}});
    }
  }
  // Without a pinned mesh the best grid is found.
  const double rows[] = {4, 32, 16};
  for (int s = 0; s < 3; ++s) {
    const std::string arguments = Plan("alexnet", 512, 2048, strategies[s]);
    EXPECT_EQ(Ask(arguments)["grid"], absl::StrCat(rows[s], "x", 512 / rows[s]));
  }
}

TEST_F(WorkedNumbersTest, GainsOfGrids) {
  const std::string batch = Plan("alexnet", 512, 2048, "batch");
  const std::string uniform = Plan("alexnet", 512, 2048, "uniform-grid");
  const std::string fc_only = Plan("alexnet", 512, 2048, "conv-batch-fc-grid");
  Check({{uniform, "/pr_star", 5.1, 0.05}, {fc_only, "/pr_star", 25.8, 0.05}});
  const auto gain = [&](const std::string& arguments, const char* field) {
    return Number(batch, field) / Number(arguments, field);
  };
  EXPECT_NEAR(gain(uniform, "/communication_seconds"), 2.74, 5e-3);
  EXPECT_NEAR(gain(fc_only, "/communication_seconds"), 7.42, 5e-3);
  EXPECT_NEAR(gain(fc_only, "/words_per_rank"), 7.61, 5e-3);
}

// Convolutions by samples over all 512 ranks, products on 32 x 16, fc6 without the gradient of
// its input: with the sizes of three AlexNets.
TEST_F(WorkedNumbersTest, GainsWithoutTheGradientOfTheFirstProductsInput) {
  const struct {
    std::vector<int64_t> convolutions;
    double in_words;
    double in_time;
  } variants[] = {
      {{34'848, 614'400, 884'736, 1'327'104, 884'736}, 8.84, 8.60},
      {{23'232, 307'200, 663'552, 884'736, 589'824}, 10.57, 10.21},
      {{34'848, 307'200, 884'736, 663'552, 442'368}, 10.80, 10.43},
  };
  for (const auto& variant : variants) {
    std::vector<std::pair<int64_t, std::string>> layers;
    for (const int64_t weights : variant.convolutions) layers.emplace_back(weights, "outputs=1");
    layers.emplace_back(37'748'736, "outputs=4096");
    layers.emplace_back(16'777'216, "inputs=4096 outputs=4096");
    layers.emplace_back(4'096'000, "inputs=4096 outputs=1000");
    double words[2] = {0, 0};
    double seconds[2] = {0, 0};
    for (size_t l = 0; l < layers.size(); ++l) {
      for (const bool split : {false, true}) {
        const bool grid = split && l >= variant.convolutions.size();
        const std::string call = absl::StrCat(
            "formula grid batch=2048 alpha=2e-6 bandwidth=6e9 pr=", grid ? 32 : 1,
            " pc=", grid ? 16 : 512, " weights=", layers[l].first, " ", layers[l].second);
        words[split] += Number(call, "/words");
        seconds[split] += Number(call, "/seconds");
      }
    }
    EXPECT_NEAR(words[0] / words[1], variant.in_words, 5e-3);
    EXPECT_NEAR(seconds[0] / seconds[1], variant.in_time, 5e-3);
  }
}

TEST_F(WorkedNumbersTest, BordersAndTinyLayers) {
  const std::string tiny = "formula grid pr=2 pc=3 batch=6 inputs=4 outputs=6 weights=24";
  Check({
      {"formula halo batch=64 width=227 channels=3 kernel=11", "/words", 217'920},
      {"formula halo batch=64 width=55 channels=96 kernel=11", "/words", 1'689'600},
      {"formula halo batch=64 width=13 channels=256 kernel=3", "/words", 212'992},
      {"formula halo batch=64 width=13 channels=384 kernel=3", "/words", 319'488},
      {"formula halo batch=2 width=5 channels=3 kernel=3", "/words", 30},
      {tiny, "/all_gather_words", 6},
      {tiny, "/input_gradient_words", 8},
      {tiny, "/weight_gradient_words", 16},
  });
  const auto more_workers = [](int rows) {
    return Plan("alexnet", 4096, 512,
                absl::StrCat("conv-domain-fc-grid --mesh data=", 4096 / rows, ",space=", rows));
  };
  Check({{more_workers(8), "/communication_seconds", 15.242e-3, 5e-7},
         {more_workers(16), "/communication_seconds", 10.443e-3, 5e-7},
         {more_workers(32), "/communication_seconds", 8.166e-3, 5e-7}});
}

}  // namespace
}  // namespace cadre
