// `cadre plan` and `cadre formula` as people and scripts call them.
#include <algorithm>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class PlanCommandTest : public ProgramTest {};

nlohmann::json JsonOf(const Result& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

constexpr char kLink[] = " --alpha 50e-6 --bandwidth 1.25e9 ";

TEST_F(PlanCommandTest, PlanNeedsNoCluster) {
  WriteSpec(kGoodSpec);
  const Result result = Run("plan run.textproto --workers 4");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("mesh {data: 1, model: 4}\n"), HasSubstr("  conv1 "),
                    HasSubstr("by ring, "), HasSubstr("no link given: --alpha and --bandwidth")));
  EXPECT_EQ(result.err, "");
  const nlohmann::json json = JsonOf(Run("plan run.textproto --workers 4 -o json"));
  EXPECT_EQ(json["mesh"]["model"], 4);
  EXPECT_TRUE(json["link"].is_null());
  EXPECT_TRUE(json["communication_seconds"].is_null());
  EXPECT_TRUE(json["policies"].is_null());
  EXPECT_TRUE(json["buckets"][0]["seconds"].is_null());
}

TEST_F(PlanCommandTest, PlanPredictsWhatALinkCosts) {
  WriteSpec(kGoodSpec);
  const std::string words =
      absl::StrCat("plan run.textproto --workers 4 --model_ranks 1", kLink, "--gamma 1e-10 ");
  const Result table = Run(words + "--flops 1e9");
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("  link 50.0 us a message, 1.25 GB/s, given\n"),
                               HasSubstr("a step by policy auto"), HasSubstr("waits for"),
                               HasSubstr("POLICY "), HasSubstr("\nhalving-doubling ")));
  const nlohmann::json json = JsonOf(Run(words + "--flops 1e9 --batch 64 -o json"));
  EXPECT_EQ(json["workers"], 4);
  EXPECT_EQ(json["batch"], 64);
  EXPECT_EQ(json["mesh"]["data"], 4);
  EXPECT_EQ(json["layers"][0]["layer"], "conv1");
  EXPECT_EQ(json["link"]["alpha"], 50e-6);
  EXPECT_EQ(json["link"]["gamma"], 1e-10);
  double seconds = 0;
  size_t parameters = 0;
  for (const nlohmann::json& bucket : json["buckets"]) {
    seconds += bucket["seconds"].get<double>();
    parameters += bucket["parameters"].size();
    EXPECT_EQ(bucket["axes"], nlohmann::json({"data"}));
    EXPECT_GT(bucket["bytes"], 0);
    EXPECT_THAT(bucket["algorithm"].get<std::string>(),
                testing::AnyOf("ring", "butterfly", "halving-doubling"));
  }
  EXPECT_EQ(parameters, 4u);
  EXPECT_NEAR(json["communication_seconds"], seconds, 1e-12);
  EXPECT_EQ(json["policies"].size(), 5u);
  EXPECT_EQ(json["policies"]["auto"], json["communication_seconds"]);
  EXPECT_GT(json["step"]["seconds"], 0);
  EXPECT_LE(json["step"]["seconds"], json["step"]["serial_seconds"]);
  EXPECT_LT(json["step"]["exposed_seconds"], json["step"]["seconds"]);
}

TEST_F(PlanCommandTest, PlanObeysThePolicy) {
  WriteSpec(kGoodSpec);
  const auto algorithms = [&](const std::string& policy) {
    const nlohmann::json json = JsonOf(Run(absl::StrCat(
        "plan run.textproto --workers 4 --model_ranks 1 -o json --collectives ", policy, kLink)));
    EXPECT_EQ(json["collectives"], policy);
    EXPECT_EQ(json["communication_seconds"], json["policies"][policy]);
    std::vector<std::string> names;
    for (const nlohmann::json& bucket : json["buckets"]) names.push_back(bucket["algorithm"]);
    return names;
  };
  EXPECT_THAT(algorithms("ring"), testing::Each("ring"));
  EXPECT_THAT(algorithms("butterfly"), testing::Each("butterfly"));
  EXPECT_THAT(algorithms("halving-doubling"), testing::Each("halving-doubling"));
  EXPECT_THAT(algorithms("paper"), testing::ElementsAre("ring", "butterfly"));
}

// Layer by layer, by data parallelism alone, on the link of the papers: 8 ranks, 10 Gbit/s, 50 us.
TEST_F(PlanCommandTest, OnAlexNetChoosingBySizeBeatsChoosingByKind) {
  const nlohmann::json json =
      JsonOf(Run(absl::StrCat("plan ", CADRE_SOURCE_DIR, "/spec/zoo/alexnet.textproto --workers 8",
                              " --model_ranks 1 --bucket_elements 1 -o json", kLink)));
  EXPECT_EQ(json["buckets"].size(), 8u);
  for (const char* const totals : {"policies", "policies_all_reduced"}) {
    const double own = json[totals]["auto"];
    EXPECT_LT(own, json[totals]["paper"]) << totals;
    for (const auto& [policy, seconds] : json[totals].items()) EXPECT_LE(own, seconds) << policy;
  }
}

TEST_F(PlanCommandTest, PlanRefusesWhatCannotBe) {
  WriteSpec(kGoodSpec);
  const struct {
    const char* flags;
    const char* says;
  } cases[] = {
      {"", "--workers is missing"},
      {"--workers 0", "--workers must say how many"},
      {"--workers 100001", "1 to 100000"},
      {"--workers -1", "--workers takes a number of workers, not '-1'"},
      {"--workers many", "--workers takes a number of workers, not 'many'"},
      {"--workers 4 --batch 0", "--batch must be at least 1"},
      {"--workers 4 --alpha 1e-6", "--alpha needs --bandwidth"},
      {"--workers 4 --bandwidth 1e9", "--bandwidth needs --alpha"},
      {"--workers 4 --gamma 1e-9", "--gamma needs --alpha and --bandwidth"},
      {"--workers 4 --flops 1e9", "--flops needs --alpha and --bandwidth"},
      {"--workers 4 --alpha -1 --bandwidth 1e9", "--alpha must be 0 or more, not -1"},
      {"--workers 4 --alpha nan --bandwidth 1e9", "--alpha must be 0 or more, not nan"},
      {"--workers 4 --alpha 0 --bandwidth 0", "--bandwidth must be above 0, not 0"},
      {"--workers 4 --alpha 0 --bandwidth inf", "--bandwidth must be above 0, not inf"},
      {"--workers 4 --alpha 0 --bandwidth fast", "--bandwidth does not take 'fast'"},
      {"--workers 4 --alpha 0 --bandwidth 1 --flops -3", "--flops must be above 0, not -3"},
      {"--workers 4 --collectives tree", "--collectives takes paper"},
      {"--workers 4 --model_ranks 3", "--model_ranks is 3, which does not divide the 4 workers"},
      {"--workers 4 --space_ranks 3", "--space_ranks is 3, which does not divide"},
      {"--workers 4 --ranks 4", "--workers says how many workers there are"},
      {"--workers 4 --memory 0", "--memory must be at least 1"},
      {"--workers 4 --batch 99999999", "--batch must be at most"},
      {"--workers 4 --strategy tree",
       "'tree' is no strategy; there are batch, model, uniform-grid"},
      {"--workers 4 --strategy=", "'' is no strategy"},
      {"--workers 4 --alpha 0 --bandwidth 1 --compare data,tree", "'tree' is no strategy"},
      {"--workers 4 --compare all", "--compare needs --alpha and --bandwidth, or --profile"},
      {"--workers 4 --epochs e.textproto", "--epochs needs --alpha and --bandwidth, or --profile"},
      {"--workers 4 --alpha 0 --bandwidth 1 --profile p", "--alpha and --profile contradict"},
      {"--workers 4 --flops 1 --profile p", "--flops and --profile contradict"},
      {"--workers 4 --mesh data=3", "--mesh and --workers contradict: the mesh has 3 ranks, not 4"},
      {"--workers 4 --alpha 1e308 --bandwidth 1", "--alpha must be 0 or more, not 1e+308"},
      {"--workers 4 --alpha 0 --bandwidth 1e-300", "--bandwidth must be above 0, not 1e-300"},
      {"--workers 4 --mesh data", "--mesh takes axes and sizes"},
      {"--workers 4 --layer fc1", "--layer takes layers and how to cut them"},
      {"--workers 4 --samples 0", "--samples must be at least 1"},
      {"--workers 4 --overlap off", "--overlap changes no plan"},
      {"--workers 4 --threads 2", "--threads is of 'cadre local' alone"},
  };
  for (const auto& [flags, says] : cases) {
    const Result result = Run(absl::StrCat("plan run.textproto ", flags));
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_THAT(result.err, HasSubstr(says)) << flags;
    EXPECT_EQ(result.out, "") << flags;
  }
  Result result = Run("run run.textproto --workers 4");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--workers is of 'cadre plan' alone"));
  // What is wrong with the file is told with its place.
  WriteSpec(With("kernel: 3", "kernel: 30"));
  result = Run("plan run.textproto --workers 4");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, StartsWith("run.textproto:4:"));
  EXPECT_EQ(Run("plan nowhere.textproto --workers 4").exit_code, 1);
}

// --- the papers' strategies ---

constexpr char kAlexNet[] = "plan alexnet --workers 512 --batch 2048 --alpha 2e-6 --bandwidth 6e9";

TEST_F(PlanCommandTest, TheWorkedNumbersOfAlexNet) {
  const struct {
    const char* strategy;
    const char* grid;
    double words;
    double milliseconds;
  } rows[] = {
      {"batch", "1x512", 124'491'927.875, 83.2826},
      {"model", "512x1", 2'412'263'392, 1608.57},
      {"uniform-grid", "4x128", 45'102'279.875, 30.380},
      {"conv-batch-fc-grid", "32x16", 16'368'887.875, 11.231},
      {"conv-domain-fc-grid", "16x32", 22'044'215.875, 15.028},
      {"group-hybrid", "32x16", 15'353'079.875, 10.533},
  };
  for (const auto& row : rows) {
    const nlohmann::json json =
        JsonOf(Run(absl::StrCat(kAlexNet, " -o json --nosensitivity --strategy ", row.strategy)));
    EXPECT_EQ(json["strategy"], row.strategy);
    EXPECT_EQ(json["grid"], row.grid);
    EXPECT_DOUBLE_EQ(json["words_per_rank"], row.words) << row.strategy;
    EXPECT_NEAR(1e3 * json["communication_seconds"].get<double>(), row.milliseconds,
                5e-5 * row.milliseconds);
    EXPECT_EQ(json["step_seconds"], json["communication_seconds"]);
    EXPECT_GT(json["memory_bytes_per_rank"], 0);
    EXPECT_EQ(json["layers"].size(), 8u);
    double words = 0;
    for (const nlohmann::json& layer : json["layers"]) words += layer["words"].get<double>();
    EXPECT_DOUBLE_EQ(words, row.words);
    int64_t ranks = 1;
    for (const auto& [axis, size] : json["mesh"].items()) ranks *= size.get<int64_t>();
    EXPECT_EQ(ranks, 512);
    EXPECT_TRUE(json["engine"].contains("mesh")) << json["engine"];
  }
}

TEST_F(PlanCommandTest, APinnedMeshIsAPapersGrid) {
  const auto words = [&](const std::string& flags) {
    const nlohmann::json json =
        JsonOf(Run(absl::StrCat(kAlexNet, " -o json --nosensitivity ", flags)));
    return json["words_per_rank"].get<double>();
  };
  EXPECT_DOUBLE_EQ(words("--strategy uniform-grid --mesh data=256,model=2"), 66'844'823.875);
  EXPECT_DOUBLE_EQ(words("--strategy conv-batch-fc-grid --mesh data=32,model=16"), 17'216'247.875);
  EXPECT_DOUBLE_EQ(words("--strategy conv-domain-fc-grid --mesh data=64,space=8"), 25'549'719.875);
  EXPECT_DOUBLE_EQ(words("--strategy uniform-grid --model_ranks 8"), 48'393'023.875);
}

TEST_F(PlanCommandTest, AStrategyWithoutALinkCountsWords) {
  const nlohmann::json json =
      JsonOf(Run("plan alexnet --workers 512 --batch 2048 --strategy uniform-grid -o json"));
  EXPECT_DOUBLE_EQ(json["words_per_rank"], 45'102'279.875);
  EXPECT_TRUE(json["communication_seconds"].is_null());
}

// --- searched ---

TEST_F(PlanCommandTest, AutoBeatsTheBestOfThePapers) {
  const nlohmann::json json =
      JsonOf(Run(absl::StrCat(kAlexNet, " -o json --nosensitivity --compare all")));
  const nlohmann::json& compare = json["compare"];
  ASSERT_EQ(compare["strategies"].size(), 7u);
  EXPECT_EQ(compare["best_of_papers"], "group-hybrid");
  EXPECT_NEAR(compare["best_of_papers_seconds"], 10.533e-3, 5e-7);
  // Nothing overlaps, and the rest is what the papers' formulas count: auto pays.
  EXPECT_GT(compare["gain"], 1.4);
  EXPECT_NEAR(compare["gain"].get<double>() * compare["auto_seconds"].get<double>(), 10.533e-3,
              5e-7);
  EXPECT_EQ(compare["gain_note"], "");
  EXPECT_GT(compare["engine_gain"], 1.0);
  EXPECT_EQ(json["exact_note"], "sums exactly");
  EXPECT_LT(compare["auto_seconds"], compare["best_of_papers_seconds"]);
  EXPECT_EQ(json["strategy"], "auto");
  EXPECT_DOUBLE_EQ(json["step_seconds"], compare["auto_seconds"]);
  for (const nlohmann::json& row : compare["strategies"]) {
    if (row["strategy"] == "auto") continue;
    EXPECT_GE(row["ratio"], 1.0) << row;
    // The engine's own search never does worse than under a strategy.
    if (row["engine"].is_null()) continue;
    EXPECT_LE(compare["auto_seconds"].get<double>(),
              row["engine"]["step_seconds"].get<double>() * (1 + 1e-9))
        << row;
  }
}

// The formulas would be held against a step that hides what they do not.
TEST_F(PlanCommandTest, WhereOverlapIsInPlayThereIsNoGainOverFormulas) {
  const std::string words = absl::StrCat(kAlexNet, " --nosensitivity --flops 1e12 --compare all");
  const nlohmann::json json = JsonOf(Run(words + " -o json"));
  const nlohmann::json& compare = json["compare"];
  EXPECT_TRUE(compare["gain"].is_null()) << compare["gain"];
  EXPECT_THAT(compare["gain_note"].get<std::string>(), HasSubstr("know no overlap"));
  EXPECT_GE(compare["engine_gain"], 1.0);
  EXPECT_EQ(compare["best_of_papers"], "group-hybrid");
  for (const nlohmann::json& row : compare["strategies"]) {
    EXPECT_EQ(row["ratio"].is_null(), row["strategy"] == "auto") << row;
  }
  EXPECT_THAT(json["exact_note"].get<std::string>(), HasSubstr("what overlaps is no sum"));
  const Result table = Run(words);
  EXPECT_THAT(table.out, AllOf(HasSubstr("no gain: the papers' formulas know no overlap"),
                               HasSubstr("as fast as the best of them in Cadre"),
                               HasSubstr("sums exactly; what overlaps is no sum")));
}

TEST_F(PlanCommandTest, ComparesWhatIsAsked) {
  const Result table = Run(absl::StrCat(kAlexNet, " --compare data,hybrid,auto --nosensitivity"));
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("STRATEGY "), HasSubstr("\nbatch "), HasSubstr("83.2826"),
                               HasSubstr("\ngroup-hybrid "), HasSubstr("\nauto "),
                               HasSubstr("best of the papers: group-hybrid"),
                               Not(HasSubstr("\nuniform-grid "))));
}

TEST_F(PlanCommandTest, EveryLayerHasItsReasons) {
  WriteSpec(kGoodSpec);
  const nlohmann::json json =
      JsonOf(Run(absl::StrCat("plan run.textproto --workers 4 --flops 1e9 -o json", kLink)));
  EXPECT_EQ(json["strategy"], "auto");
  for (const nlohmann::json& layer : json["layers"]) {
    for (const char* field :
         {"layer", "kind", "splits", "output", "forward_seconds", "backward_seconds", "words",
          "communication_seconds", "memory_bytes", "runner_up"}) {
      EXPECT_TRUE(layer.contains(field)) << field;
    }
  }
  for (const char* field : {"words_per_rank", "communication_seconds", "step_seconds",
                            "exposed_seconds", "memory_bytes_per_rank", "utilisation", "exact",
                            "bytes_inside_group", "bytes_across_groups"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  EXPECT_GE(json["utilisation"], 0.0);
  EXPECT_LE(json["utilisation"], 1.0);
  // Two groups of four average 1,176 parameters every four steps, up and down.
  const double parameters = 4 * 9 + 4 + 4 * 256 + 4;
  EXPECT_DOUBLE_EQ(json["bytes_across_groups"], 2 * 2 * parameters * 4 / 4);
}

TEST_F(PlanCommandTest, SaysWhatWouldChangeIt) {
  WriteSpec(kGoodSpec);
  const nlohmann::json json =
      JsonOf(Run(absl::StrCat("plan run.textproto --workers 4 --flops 1e9 -o json", kLink)));
  ASSERT_EQ(json["sensitivity"].size(), 7u);
  double before = 0;
  for (const nlohmann::json& row : json["sensitivity"]) {
    if (row["what"] != "bandwidth") continue;
    // A faster link never makes the best plan slower.
    if (before > 0) {
      EXPECT_LE(row["step_seconds"].get<double>(), before * (1 + 1e-9));
    }
    before = row["step_seconds"];
  }
  EXPECT_TRUE(json["sensitivity"][6]["changes"]) << "that plan does not fit any more";
  const nlohmann::json without = JsonOf(Run(
      absl::StrCat("plan run.textproto --workers 4 --flops 1e9 --nosensitivity -o json", kLink)));
  EXPECT_TRUE(without["sensitivity"].is_null());
}

// --- pins ---

TEST_F(PlanCommandTest, PinsAreKeptAndTheirPriceTold) {
  const nlohmann::json json =
      JsonOf(Run(absl::StrCat("plan alexnet --workers 8 --batch 64 -o json --nosensitivity --mesh ",
                              "data=4,model=2 --layer fc6=model,fc7=data", kLink)));
  EXPECT_EQ(json["mesh"]["data"], 4);
  EXPECT_EQ(json["mesh"]["model"], 2);
  for (const nlohmann::json& layer : json["layers"]) {
    if (layer["layer"] == "fc6") {
      EXPECT_EQ(layer["splits"]["out"], nlohmann::json({"model"}));
    }
    if (layer["layer"] == "fc7") {
      EXPECT_FALSE(layer["splits"].contains("out"));
    }
  }
  ASSERT_TRUE(json.contains("unpinned"));
  EXPECT_GE(json["pins_cost_seconds"], 0.0);
  EXPECT_NEAR(json["step_seconds"].get<double>() - json["pins_cost_seconds"].get<double>(),
              json["unpinned"]["step_seconds"], 1e-12);
}

TEST_F(PlanCommandTest, PinsThatContradictAreErrors) {
  const struct {
    const char* flags;
    const char* says;
  } cases[] = {
      {"--layer nowhere=model", "is 'nowhere', which is no layer of the model"},
      {"--layer fc6=sideways", "is 'sideways'; give data, model, model-in or domain"},
      {"--layer fc6=domain", "'fc6' can only be cut by data, model, model-in"},
      // The paper's figures would be those of a plan without the pin.
      {"--strategy batch --layer fc6=model", "know no pinned layers such as fc6"},
      {"--strategy uniform-grid --layer fc6=model", "--strategy auto keeps pins"},
  };
  for (const auto& [flags, says] : cases) {
    const Result result = Run(absl::StrCat("plan alexnet --workers 8 ", flags, kLink));
    EXPECT_NE(result.exit_code, 0) << flags;
    EXPECT_THAT(result.err, HasSubstr(says)) << flags;
    EXPECT_EQ(result.out, "");
  }
}

// --- memory ---

TEST_F(PlanCommandTest, MemoryThatIsTooLittle) {
  const auto words_of = [](int64_t workers) {
    return absl::StrCat("plan alexnet --batch 64 --nosensitivity --workers ", workers, kLink);
  };
  const std::string words = words_of(8);
  Result result = Run(words + "--memory 150000000");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  // How much is missing, which layer needs most, and how many ranks would do: those do.
  std::smatch said;
  ASSERT_TRUE(std::regex_search(
      result.err, said,
      std::regex("needs ([0-9]+) bytes.*, ([0-9]+) bytes [^;]* more; most of that, "
                 "([0-9]+) bytes .*for layer 'fc6'; ([0-9]+) ranks would do")))
      << result.err;
  EXPECT_EQ(std::stoll(said[2]), std::stoll(said[1]) - 150'000'000);
  EXPECT_GT(std::stoll(said[3]), 0);
  const int64_t ranks = std::stoll(said[4]);
  EXPECT_GT(ranks, 8);
  EXPECT_EQ(Run(words_of(ranks) + "--memory 150000000").exit_code, 0) << ranks;
  result = Run(words + "--strategy batch --memory 100000000");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("batch needs"), HasSubstr("more than it has"),
                                HasSubstr("layer 'fc6'")));
  // What fits is found: less memory than the fastest plan needs.
  const nlohmann::json free = JsonOf(Run(words + "-o json --nosensitivity"));
  const auto needs = free["memory_bytes_per_rank"].get<int64_t>();
  const nlohmann::json less =
      JsonOf(Run(absl::StrCat(words, "-o json --nosensitivity --memory ", needs - 1)));
  EXPECT_LT(less["memory_bytes_per_rank"], needs);
  EXPECT_GE(less["step_seconds"], free["step_seconds"]);
}

// --- profiles ---

constexpr char kProfile[] = R"(
  host { name: "a" count: 2 workers: 2 device: "d" memory_bytes: 8000000000
         inside { alpha: 1e-6 beta: 1e-10 } }
  default_link { alpha: 50e-6 beta: 8e-10 }
  device { name: "d" flops: 1e11 }
)";

TEST_F(PlanCommandTest, AProfileStandsInForLinkAndSpeed) {
  std::ofstream(folder_ + "/rack.profile") << kProfile;
  const nlohmann::json json = JsonOf(
      Run("plan alexnet --workers 4 --batch 64 --profile rack.profile -o json --nosensitivity"));
  EXPECT_GT(json["compute_seconds"], 0.0);
  EXPECT_GE(json["step_seconds"], json["compute_seconds"]);
  const nlohmann::json batch =
      JsonOf(Run("plan alexnet --workers 4 --batch 64 --profile "
                 "rack.profile -o json --nosensitivity --strategy batch"));
  EXPECT_EQ(batch["strategy"], "batch");
  EXPECT_GE(batch["step_seconds"].get<double>() * (1 + 1e-9), json["step_seconds"]);
  // 2 (4 - 1) / 4 of the weights, beside what the engine says.
  EXPECT_DOUBLE_EQ(batch["paper"]["words_per_rank"], 1.5 * 62'367'776);
}

TEST_F(PlanCommandTest, ProfilesThatCannotBe) {
  const auto says = [&](const std::string& profile, const std::string& flags) {
    std::ofstream(folder_ + "/rack.profile") << profile;
    const Result result = Run("plan alexnet --profile rack.profile " + flags);
    EXPECT_EQ(result.exit_code, 1) << profile;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(says(kProfile, "--workers 5"),
              HasSubstr("the profile's hosts have 4 workers, 5 are wanted"));
  EXPECT_THAT(says("hots {}", "--workers 1"), HasSubstr("rack.profile:1:1"));
  EXPECT_THAT(says(absl::StrReplaceAll(kProfile, {{"beta: 8e-10", "beta: -1"}}), "--workers 4"),
              HasSubstr("rack.profile:4:31: default_link.beta: is -1, must be"));
  EXPECT_THAT(
      says(absl::StrReplaceAll(kProfile, {{"default_link { alpha: 50e-6 beta: 8e-10 }", ""}}),
           "--workers 4"),
      HasSubstr("link: none between 'a' and 'a'; a default_link would stand"));
  const Result missing = Run("plan alexnet --workers 1 --profile nowhere.profile");
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_THAT(missing.err, HasSubstr("nowhere.profile"));
}

// --- time to a target ---

TEST_F(PlanCommandTest, EpochsGiveTheTimeToTheTarget) {
  WriteSpec(kGoodSpec);
  std::ofstream(folder_ + "/epochs.textproto") << R"(
    target_accuracy: 0.9 batch_per_worker: 8
    entry { workers: 1 epochs: 4 reached: true }
    entry { workers: 4 epochs: 5 reached: true }
    entry { workers: 8 epochs: 50 reached: true })";
  const std::string words =
      absl::StrCat("plan run.textproto --workers 8 --batch 32 --flops 1e9 --nosensitivity -o json ",
                   "--epochs epochs.textproto", kLink);
  const nlohmann::json json = JsonOf(Run(words));
  const nlohmann::json& target = json["target"];
  EXPECT_EQ(target["samples"], 256) << "the spec says so";
  EXPECT_DOUBLE_EQ(target["epochs"], 5) << "32 samples are four workers'";
  EXPECT_DOUBLE_EQ(target["seconds_to_target"], 5.0 * 8 * json["step_seconds"].get<double>());
  ASSERT_EQ(target["choices"].size(), 4u);
  double least = target["choices"][0]["seconds_to_target"];
  for (const nlohmann::json& choice : target["choices"]) {
    least = std::min(least, choice["seconds_to_target"].get<double>());
    EXPECT_EQ(choice["data_workers"].get<int>() * choice["devices"].get<int>(), 8);
  }
  EXPECT_EQ(target["best"]["seconds_to_target"], least);
  EXPECT_NE(target["best"]["data_workers"], 8) << "ten times the epochs";
  EXPECT_DOUBLE_EQ(target["gain"], target["choices"][3]["seconds_to_target"].get<double>() / least);
  EXPECT_LE(target["crossover_workers"], 8);
  const nlohmann::json beyond = JsonOf(Run(words + "--batch 128"));
  EXPECT_TRUE(beyond["target"]["seconds_to_target"].is_null());
  EXPECT_THAT(beyond["target"]["note"].get<std::string>(), HasSubstr("1 to 8 workers, not for 16"));
}

// A pass of fewer samples than a step has is not done in no time.
TEST_F(PlanCommandTest, BatchesThatAPassHasNoStepOfAreLeftOut) {
  WriteSpec(kGoodSpec);
  std::ofstream(folder_ + "/epochs.textproto") << R"(
    target_accuracy: 0.9 batch_per_worker: 8
    entry { workers: 1 epochs: 4 reached: true }
    entry { workers: 8 epochs: 5 reached: true })";
  const nlohmann::json json = JsonOf(
      Run(absl::StrCat("plan run.textproto --workers 8 --batch 64 --samples 10 --nosensitivity ",
                       "-o json --epochs epochs.textproto", kLink)));
  const nlohmann::json& target = json["target"];
  ASSERT_EQ(target["choices"].size(), 1u);
  EXPECT_EQ(target["best"]["data_workers"], 1);
  EXPECT_GT(target["best"]["seconds_to_target"], 0.0);
  EXPECT_TRUE(target["gain"].is_null());
  EXPECT_TRUE(target["seconds_to_target"].is_null());
  EXPECT_EQ(target["note"], "a pass of 10 samples has no step of 64");
  EXPECT_EQ(target["left_out"],
            "batches of 2 workers and more are left out: a pass of 10 samples has no step of 16");
}

TEST_F(PlanCommandTest, TablesOfEpochsThatCannotBe) {
  WriteSpec(kGoodSpec);
  for (const char* table :
       {"", "entry { workers: 1 epochs: 4 reached: true }",
        "batch_per_worker: 8 target_accuracy: 0.9",
        "batch_per_worker: 8 target_accuracy: 0.9 entry { epochs: 4 }",
        "batch_per_worker: 8 target_accuracy: 0.9 entry { workers: 1 }", "batch: 8"}) {
    std::ofstream(folder_ + "/epochs.textproto") << table;
    const Result result =
        Run(absl::StrCat("plan run.textproto --workers 2 --epochs epochs.textproto", kLink));
    EXPECT_EQ(result.exit_code, 1) << table;
    EXPECT_THAT(result.err, HasSubstr("epochs.textproto")) << table;
  }
}

// --- scale ---

TEST_F(PlanCommandTest, OneWorkerAndVeryMany) {
  const nlohmann::json one =
      JsonOf(Run(absl::StrCat("plan lenet --workers 1 -o json --nosensitivity", kLink)));
  EXPECT_EQ(one["words_per_rank"], 0);
  EXPECT_EQ(one["step_seconds"], 0);
  const nlohmann::json many = JsonOf(
      Run(absl::StrCat("plan mlp --workers 100000 --batch 400000 -o json --nosensitivity", kLink)));
  EXPECT_EQ(many["workers"], 100'000);
  EXPECT_GT(many["step_seconds"], 0);
}

// --- formulas one by one ---

TEST_F(PlanCommandTest, FormulasThatCannotBe) {
  const struct {
    const char* words;
    const char* says;
  } cases[] = {
      {"nowhere", "no formula 'nowhere'"},
      {"halo batch=2 width=5 channels=3", "kernel is missing"},
      {"halo batch=2 width=5 channels=3 kernel=3 depth=1", "no parameter 'depth'"},
      {"halo batch=2 width=5 channels=3 kernel=3 kernel=3", "kernel is given twice"},
      {"halo batch=2.5 width=5 channels=3 kernel=3", "batch is '2.5'; give a whole number"},
      {"halo batch=0 width=5 channels=3 kernel=3", "batch is '0'"},
      {"butterfly-limit ranks=6 alpha=1 bandwidth=1", "a power of two"},
      {"ring ranks=6 bytes=1 alpha=1 bandwidth=0", "bandwidth is '0'"},
      {"ring ranks=6 bytes=1 alpha=-1 bandwidth=1", "alpha is '-1'"},
      {"overlap forward=1,2 backward=1 communication=1,2", "a number for each layer"},
      {"overlap forward=1, backward=1 communication=1", "forward is ''"},
      // What would not end, overflow, or be no number.
      {"averaging parameters=9000000000000000 groups=9000000000000000 ranks=9000000000000000",
       "groups is '9000000000000000'; give a whole number, 1 to 1048576"},
      {"averaging parameters=1 groups=4611686018427388 ranks=4611686018427388 samples=1e300",
       "groups is '4611686018427388'"},
      {"averaging parameters=1 groups=1 ranks=1 samples=1e300", "samples is '1e300'"},
      {"averaging parameters=9000000000000000 groups=1048576 ranks=1",
       "groups times parameters is more than"},
      {"averaging parameters=1 groups=1048576 ranks=1 samples=1 batch=9000000000000000",
       "groups times batch is more than"},
      {"ring ranks=1048577 bytes=1 alpha=1 bandwidth=1", "ranks is '1048577'"},
      {"ring ranks=2 bytes=1 alpha=1e308 bandwidth=1e-300", "seconds would be inf"},
      {"hybrid-rule devices=2 epochs=0 more_epochs=7 speedup=1", "epochs is '0'; give a number"},
      {"hybrid-rule devices=2 epochs=4 more_epochs=0 speedup=1", "more_epochs is '0'"},
      {"discrepancy signal=0 noise=0 groups=1", "signal and noise are both 0"},
      {"group-hybrid workers=6 samples=1 group=4 weights=1 inputs=1 outputs=1 alpha=0 bandwidth=1",
       "groups of 4 do not divide 6 workers"},
      {"group-hybrid workers=4 samples=1 group=4 weights=1,2 inputs=1 outputs=1 alpha=0 "
       "bandwidth=1",
       "need a number for each layer"},
      {"grid pr=1 pc=1048577 batch=1 outputs=1 weights=1", "pc is '1048577'"},
  };
  for (const auto& [words, says] : cases) {
    const Result result = Run(absl::StrCat("formula ", words));
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_THAT(result.err, HasSubstr(says)) << words;
  }
  EXPECT_THAT(Run("formula").out, AllOf(HasSubstr("butterfly-limit"), HasSubstr("group-hybrid")));
  // The largest that are taken end at once.
  EXPECT_EQ(Run("formula averaging parameters=900000000000 groups=1048576 ranks=1048576").exit_code,
            0);
}

}  // namespace
}  // namespace cadre
