// Tests the flags and files of `cadre plan`. plan_render_test.cc tests its output,
// tests/lab the values.
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class PlanCommandTest : public ProgramTest {};

nlohmann::json JsonOf(const Result& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

constexpr char kLink[] = " --alpha 50e-6 --bandwidth 1.25e9 ";

TEST_F(PlanCommandTest, FlagsReachTheReport) {
  WriteSpec(kGoodSpec);
  const Result table = Run("plan run.textproto --workers 4");
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, StartsWith("mesh {data: 1, model: 4}\n"));
  EXPECT_EQ(table.err, "");
  std::ofstream(folder_ + "/epochs.textproto") << R"(
    target_accuracy: 0.9 batch_per_worker: 8
    entry { workers: 1 epochs: 4 reached: true } entry { workers: 8 epochs: 5 reached: true })";
  const nlohmann::json json = JsonOf(Run(absl::StrCat(
      "plan run.textproto --workers 4 --batch 64 --mesh data=4 --layer fc1=data --gamma 1e-10 ",
      "--flops 1e9 --memory 1000000 --bucket_elements 1 --collectives ring --compare data,auto ",
      "--groups 2 --epochs epochs.textproto --samples 512 --sensitivity -o json", kLink)));
  EXPECT_EQ(json["workers"], 4);
  EXPECT_EQ(json["batch"], 64);
  EXPECT_EQ(json["mesh"], nlohmann::json({{"data", 4}}));
  EXPECT_EQ(json["link"]["alpha"], 50e-6);
  EXPECT_EQ(json["link"]["gamma"], 1e-10);
  EXPECT_GT(json["compute_seconds"], 0.0);
  EXPECT_EQ(json["collectives"], "ring");
  EXPECT_EQ(json["buckets"].size(), 2u);
  EXPECT_EQ(json["compare"]["strategies"].size(), 2u);
  EXPECT_EQ(json["target"]["samples"], 512);
  EXPECT_EQ(json["groups"]["choices"].size() + json["groups"]["refused"].size(), 2u);
  EXPECT_EQ(json["sensitivity"].size(), 7u);
  EXPECT_TRUE(json.contains("unpinned"));
}

// One number from each paper; tests/plan/cost tests all of them.
TEST_F(PlanCommandTest, StrategiesReportThePapersNumbers) {
  const auto plan = [&](const std::string& flags) {
    return JsonOf(Run(absl::StrCat("plan alexnet --workers 512 --batch 2048 --alpha 2e-6 ",
                                   "--bandwidth 6e9 --nosensitivity -o json --strategy ", flags)));
  };
  const nlohmann::json batch = plan("batch");
  EXPECT_EQ(batch["words_per_rank"], 124'491'927.875);
  EXPECT_EQ(batch["alpha_messages"], 144);
  EXPECT_NEAR(batch["communication_seconds"], 83.2826e-3, 5e-8);
  EXPECT_EQ(batch["network"]["weights"], 62'367'776);
  EXPECT_EQ(batch["layers"][0]["inputs_per_sample"], 154'587);
  EXPECT_EQ(plan("model")["words_per_rank"], 2'412'263'392);
  const nlohmann::json hybrid = plan("group-hybrid");
  EXPECT_NEAR(hybrid["g_star"], 28.61, 5e-3);
  EXPECT_EQ(hybrid["mesh"]["model"], 32);
  EXPECT_EQ(hybrid["words_per_rank"], 15'353'079.875);
  EXPECT_NEAR(hybrid["parameter_state_bytes"], 66.9e6, 0.05e6);
  const nlohmann::json uniform = plan("uniform-grid");
  EXPECT_EQ(uniform["grid"], "4x128");
  EXPECT_NEAR(uniform["pr_star"], 5.1, 0.05);
  EXPECT_EQ(plan("uniform-grid --mesh data=32,model=16")["words_per_rank"], 78'362'427.875);
  EXPECT_EQ(plan("conv-batch-fc-grid")["grid"], "32x16");
  EXPECT_EQ(plan("conv-domain-fc-grid --mesh data=32,space=16")["words_per_rank"], 22'044'215.875);
}

TEST_F(PlanCommandTest, RejectsInvalidFlags) {
  const struct {
    const char* flags;
    const char* error;
  } cases[] = {
      {"", "missing flag --workers"},
      {"--workers 0", "--workers takes a whole number of at least 1, not '0'"},
      {"--workers 100001", "of at most 100000"},
      {"--workers 4 --alpha 1e-6", "--alpha requires --bandwidth"},
      {"--workers 4 --bandwidth 1e9", "--bandwidth requires --alpha"},
      {"--workers 4 --gamma 1e-9", "--gamma requires --alpha and --bandwidth"},
      {"--workers 4 --flops 1e9", "--flops requires --alpha and --bandwidth"},
      {"--workers 4 --alpha -1 --bandwidth 1e9",
       "--alpha takes a number from 0 to 1e+12, not '-1'"},
      {"--workers 4 --alpha nan --bandwidth 1e9",
       "--alpha takes a number from 0 to 1e+12, not 'nan'"},
      {"--workers 4 --alpha 0 --bandwidth inf",
       "--bandwidth takes a number from 1e-12 to 1e+30, not 'inf'"},
      {"--workers 4 --model_ranks 3", "--model-ranks is 3, which does not divide the 4 workers"},
      {"--workers 4 --space_ranks 3", "--space-ranks is 3, which does not divide"},
      {"--workers 4 --memory 0", "--memory takes a whole number of at least 1"},
      {"--workers 4 --batch 99999999", "--batch takes a whole number of at most"},
      {"--workers 4 --strategy tree", "--strategy takes batch, model, uniform-grid, "},
      {"--workers 4 --alpha 0 --bandwidth 1 --compare data,tree", "unknown strategy 'tree'"},
      {"--workers 4 --compare all", "--compare requires --alpha and --bandwidth, or --profile"},
      {"--workers 4 --epochs e.textproto",
       "--epochs requires --alpha and --bandwidth, or --profile"},
      {"--workers 4 --alpha 0 --bandwidth 1 --profile p", "--alpha and --profile contradict"},
      {"--workers 4 --flops 1 --profile p", "--flops and --profile contradict"},
      {"--workers 4 --mesh data=3", "--mesh and --workers contradict: the mesh has 3 ranks, not 4"},
      {"--workers 4 --samples 0", "--samples takes a whole number of at least 1"},
  };
  for (const auto& [flags, error] : cases) {
    const Result result = Call(absl::StrCat("plan run.textproto ", flags));
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_THAT(result.err, HasSubstr(error)) << flags;
    EXPECT_EQ(result.out, "") << flags;
  }
}

// tests/model and tests/plan test the rules; these errors show that each file and request is
// checked.
TEST_F(PlanCommandTest, ReportsErrorsOfFilesAndRequests) {
  WriteSpec(With("kernel: 3", "kernel: 30"));
  std::ofstream(folder_ + "/rack.profile") << "hots {}";
  std::ofstream(folder_ + "/syntax.textproto") << "batch: 8";
  std::ofstream(folder_ + "/empty.textproto") << "batch_per_worker: 8 target_accuracy: 0.9";
  const struct {
    const char* arguments;
    const char* error;
  } cases[] = {
      {"run.textproto", "run.textproto:4:"},
      {"nowhere.textproto", "nowhere.textproto"},
      {"mlp --profile rack.profile", "rack.profile:1:1"},
      {"mlp --profile nowhere.profile", "nowhere.profile"},
      {"mlp --alpha 0 --bandwidth 1 --samples 9 --epochs syntax.textproto", "syntax.textproto:1:"},
      {"mlp --alpha 0 --bandwidth 1 --samples 9 --epochs empty.textproto", "empty.textproto"},
      {"alexnet --layer nowhere=model", "is 'nowhere', which is not a layer of the model"},
      {"alexnet --strategy batch --layer fc6=model --alpha 0 --bandwidth 1",
       "do not model pinned layers such as fc6"},
  };
  for (const auto& [arguments, error] : cases) {
    const Result result = Run(absl::StrCat("plan --workers 4 ", arguments));
    EXPECT_EQ(result.exit_code, 1) << arguments;
    EXPECT_THAT(result.err, HasSubstr(error)) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

TEST_F(PlanCommandTest, PlansMoreWorkersThanARunMayHave) {
  const nlohmann::json many = JsonOf(
      Run(absl::StrCat("plan mlp --workers 100000 --batch 400000 -o json --nosensitivity", kLink)));
  EXPECT_EQ(many["workers"], 100'000);
  EXPECT_GT(many["step_seconds"], 0);
}

}  // namespace
}  // namespace cadre
