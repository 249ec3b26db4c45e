// The program `cadre` as people and scripts call it: usage, help, and run specs that are refused
// before any process is started.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "cli/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace cadre {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

constexpr char kGoodSpec[] = R"(name: "good"
model {
  input { channels: 1 height: 8 width: 8 }
  layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "fc1" fully_connected { out_features: 4 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
data { synthetic { train_samples: 256 test_samples: 64 classes: 4 } }
batch_per_group: 32
optimizer { sgd { momentum: 0.9 } }
schedule { base_rate: 0.1 }
averaging { every_steps: 4 }
cluster { groups: 2 ranks_per_group: 2 aggregators: 1 }
stop { epochs: 1 }
)";

struct Result {
  int exit_code = -1;
  std::string out;
  std::string err;
};

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    std::string path = testing::TempDir() + "/cadre_program-XXXXXX";
    folder_ = mkdtemp(path.data());
    // A copy without the other programs beside it: whoever tries to start one fails.
    program_ = folder_ + "/cadre";
    std::filesystem::copy_file(CADRE_PROGRAM, program_);
  }
  ~ProgramTest() override { std::filesystem::remove_all(folder_); }

  Result Run(const std::string& words) {
    auto process =
        Process::Start({.program = "/bin/sh",
                        .arguments = {"-c", absl::StrCat("cd ", folder_, " && exec ./cadre ", words,
                                                         " >out.txt 2>err.txt")}});
    EXPECT_TRUE(process.ok()) << process.status();
    const auto ending = process->WaitUntil(absl::Now() + absl::Seconds(60));
    EXPECT_TRUE(ending.has_value() && !ending->signalled) << words;
    Result result;
    if (ending.has_value()) result.exit_code = ending->code;
    result.out = ReadFile(folder_ + "/out.txt").value_or("");
    result.err = ReadFile(folder_ + "/err.txt").value_or("");
    return result;
  }

  void WriteSpec(const std::string& text) { std::ofstream(folder_ + "/run.textproto") << text; }

  // The spec with one thing replaced, which must be in it.
  static std::string With(const std::string& what, const std::string& by) {
    const std::string changed = absl::StrReplaceAll(kGoodSpec, {{what, by}});
    EXPECT_NE(changed, kGoodSpec) << what;
    return changed;
  }

  // `cadre local` refuses the spec with a first line that names file, line, column and field, and
  // leaves nothing behind.
  void ExpectRefused(const std::string& spec, int line, const std::string& field,
                     const std::string& flags = "") {
    WriteSpec(spec);
    const Result result = Run("local run.textproto " + flags);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, StartsWith(absl::StrCat("run.textproto:", line, ":"))) << field;
    EXPECT_THAT(result.err, HasSubstr(field));
    EXPECT_THAT(result.err, Not(HasSubstr("cadre-coordinator"))) << "a process was started";
    EXPECT_EQ(result.out, "");
  }

  std::string folder_;
  std::string program_;
};

TEST_F(ProgramTest, WithoutAVerbItSaysWhatItCanDo) {
  const Result result = Run("");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("Usage: cadre VERB"), HasSubstr("local")));
  EXPECT_EQ(result.out, "");
}

TEST_F(ProgramTest, HelpTeaches) {
  for (const char* words : {"help", "--help", "-h"}) {
    const Result result = Run(words);
    EXPECT_EQ(result.exit_code, 0) << words;
    EXPECT_THAT(result.out, HasSubstr("cadre help VERB")) << words;
    EXPECT_EQ(result.err, "");
  }
  for (const char* verb :
       {"local", "run", "plan", "runs", "status", "watch", "members", "stop", "wait", "trace"}) {
    const Result result = Run(absl::StrCat("help ", verb));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, AllOf(HasSubstr(absl::StrCat("Usage: cadre ", verb)),
                                  HasSubstr("Examples:"), HasSubstr("--coordinator")));
    EXPECT_EQ(Run(absl::StrCat(verb, " --help")).out, result.out);
  }
}

TEST_F(ProgramTest, VersionNamesTheProtocol) {
  const Result result = Run("version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, MatchesRegex("cadre [0-9.]+ \\(protocol [0-9a-f]+\\)\n"));
  EXPECT_EQ(Run("--version").out, result.out);
}

TEST_F(ProgramTest, WrongWordsAreUsageErrors) {
  const struct {
    const char* words;
    const char* says;
  } cases[] = {
      {"lcoal x", "did you mean 'local'?"},
      {"frobnicate", "unknown verb 'frobnicate'"},
      {"help statsu", "did you mean 'status'?"},
      {"status --grups 2", "did you mean --groups?"},
      {"status -o yaml", "-o takes table or json"},
      {"status -o", "needs a value"},
      {"status --color sometimes", "--color takes"},
      {"status --timeout soon", "'soon' is not a time"},
      {"local", "a word is missing"},
      {"stop", "a word is missing"},
      {"wait a b", "what is 'b' for?"},
      {"runs extra", "what is 'extra' for?"},
      {"local x --groups two", "--groups does not take 'two'"},
      {"local x --groups 0", "--groups must be at least 1"},
      {"local x --ranks 0", "--ranks must be at least 1"},
      {"run x --groups 0", "--groups must be at least 1"},
      {"run x --threads 2", "--threads is of 'cadre local' alone"},
      {"trace", "a word is missing"},
      {"trace a b", "what is 'b' for?"},
      {"trace x --steps 0", "--steps must be 1 to 100"},
      {"trace x --steps 101", "--steps must be 1 to 100"},
      {"trace x --group -1", "--group must be at least 0"},
      {"trace x -O a --output b", "give one of them"},
      {"trace x -O", "needs a value"},
      {"run x --group 2", "--group is of 'cadre trace' alone"},
      {"local x --steps 3", "--steps is of 'cadre trace' alone"},
      {"runs -O file", "-O is of 'cadre trace' alone"},
      {"local x --threads 0", "--threads must be at least 1"},
  };
  for (const auto& [words, says] : cases) {
    const Result result = Run(words);
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_THAT(result.err, AllOf(StartsWith("cadre: "), HasSubstr(says))) << words;
    EXPECT_EQ(result.out, "") << words;
  }
}

TEST_F(ProgramTest, ASpecThatIsGoodGetsAsFarAsTheMissingPrograms) {
  WriteSpec(kGoodSpec);
  const Result result = Run("local run.textproto");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cadre-coordinator"));
  // The temporary folder is gone with it.
  EXPECT_THAT(result.err, Not(HasSubstr("logs are in")));
}

TEST_F(ProgramTest, AMissingSpecIsNamed) {
  const Result result = Run("local nowhere.textproto");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("nowhere.textproto"));
}

TEST_F(ProgramTest, BadSpecsAreRefusedWithTheirPlace) {
  // A typo.
  ExpectRefused(With("base_rate", "base_rat"), 11, "base_rat");
  // An unknown layer.
  ExpectRefused(With("convolution {", "deconvolution {"), 4, "deconvolution");
  // A kernel larger than the padded image.
  ExpectRefused(With("kernel: 3", "kernel: 30"), 4, "kernel");
  // An axis that does not divide the ranks.
  ExpectRefused(With("aggregators: 1", "aggregators: 1 space_ranks: 3"), 13, "space_ranks");
  // A number that cannot be.
  ExpectRefused(With("momentum: 0.9", "momentum: 1.5"), 10, "momentum");
  // No end.
  ExpectRefused(With("stop { epochs: 1 }", "stop {}"), 14, "stop");
}

TEST_F(ProgramTest, DataThatIsNotThereIsRefused) {
  const std::string idx = R"(data { idx { train_images: "no-such-file" train_labels: "l" )"
                          R"(test_images: "i" test_labels: "m" } })";
  ExpectRefused(With("data { synthetic { train_samples: 256 test_samples: 64 classes: 4 } }", idx),
                8, "no-such-file");
}

TEST_F(ProgramTest, FlagsAreCheckedLikeTheSpec) {
  WriteSpec(kGoodSpec);
  // Averaging needs somebody who averages.
  Result result = Run("run run.textproto --ranks 6 --space_ranks 4");
  EXPECT_THAT(result.err, HasSubstr("space_ranks")) << "flags change what is submitted, too";
  result = Run("local run.textproto --aggregators 0");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("aggregators"), Not(HasSubstr("cadre-coordinator"))));
  // Axes of 2 and 2 in a group of 6.
  result = Run("local run.textproto --ranks 6 --space_ranks 2 --model_ranks 2");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("cluster.space_ranks"), HasSubstr("their product, 4"),
                                Not(HasSubstr("cadre-coordinator"))));
  // A checkpoint that is not there.
  result = Run("local run.textproto --from nowhere");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("checkpoint.from"), HasSubstr("nowhere"),
                                Not(HasSubstr("cadre-coordinator"))));
}

TEST_F(ProgramTest, PoliciesAndOverlapHaveNames) {
  WriteSpec(kGoodSpec);
  for (const char* const verb : {"local", "run"}) {
    Result result = Run(absl::StrCat(verb, " run.textproto --collectives tree"));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("--collectives takes paper, ring, butterfly, "
                                      "halving-doubling or auto, not 'tree'"));
    result = Run(absl::StrCat(verb, " run.textproto --overlap maybe"));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("--overlap takes on or off, not 'maybe'"));
    EXPECT_EQ(Run(absl::StrCat(verb, " run.textproto --overlap=")).exit_code, 2);
  }
  for (const char* const policy : {"paper", "ring", "butterfly", "halving-doubling", "auto"}) {
    // As far as the programs that are not there.
    const Result result =
        Run(absl::StrCat("local run.textproto --overlap off --collectives ", policy));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("cadre-coordinator")) << policy;
  }
}

// --- cadre plan ---

constexpr char kLink[] = " --alpha 50e-6 --bandwidth 1.25e9 ";

nlohmann::json JsonOf(const Result& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

TEST_F(ProgramTest, PlanNeedsNoCluster) {
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

TEST_F(ProgramTest, PlanPredictsWhatALinkCosts) {
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

TEST_F(ProgramTest, PlanObeysThePolicy) {
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
TEST_F(ProgramTest, OnAlexNetChoosingBySizeBeatsChoosingByKind) {
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

TEST_F(ProgramTest, PlanRefusesWhatCannotBe) {
  WriteSpec(kGoodSpec);
  const struct {
    const char* flags;
    const char* says;
  } cases[] = {
      {"", "--workers is missing"},
      {"--workers 0", "--workers must say how many"},
      {"--workers 5000", "1 to 4096"},
      {"--workers -1", "--workers does not take '-1'"},
      {"--workers many", "--workers does not take 'many'"},
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

TEST_F(ProgramTest, AFolderOfAnEarlierClusterIsNotTakenOver) {
  WriteSpec(kGoodSpec);
  std::filesystem::create_directory(folder_ + "/old");
  std::ofstream(folder_ + "/old/store.db") << "x";
  const Result result = Run("local run.textproto --dir old");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("earlier cluster"));
  EXPECT_EQ(ReadFile(folder_ + "/old/store.db").value_or(""), "x");
}

TEST_F(ProgramTest, NoCoordinatorIsOneLineAndACode) {
  for (const char* words : {"status", "runs", "members", "watch", "wait run-1", "stop run-1",
                            "trace run-1", "trace run-1 -O -"}) {
    // Port 1 of loopback: nobody listens there.
    const Result result = Run(absl::StrCat(words, " --coordinator 127.0.0.1:1 --timeout 500ms"));
    EXPECT_EQ(result.exit_code, 4) << words;
    EXPECT_THAT(result.err, MatchesRegex("cadre: [^\n]*127.0.0.1:1[^\n]*\n")) << words;
    EXPECT_EQ(result.out, "") << words;
  }
}

}  // namespace
}  // namespace cadre
