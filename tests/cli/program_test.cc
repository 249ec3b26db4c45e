// Tests the program `cadre`: usage errors, help, and run files that are rejected before another
// process is started.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "cli/process.h"
#include "cli/verb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(ProgramTest, NoVerbIsAUsageError) {
  const Result result = Run("");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("Usage: cadre VERB"), HasSubstr("local")));
  EXPECT_EQ(result.out, "");
}

TEST(CommandsTest, Help) {
  const std::string general = Call("help").out;
  EXPECT_THAT(general, HasSubstr("cadre help VERB"));
  for (const char* words : {"--help", "-h"}) EXPECT_EQ(Call(words).out, general) << words;
  for (const Verb& verb : Verbs()) {
    EXPECT_THAT(general, HasSubstr(absl::StrCat("  ", verb.name, " ")));
    const Result result = Call(absl::StrCat("help ", verb.name));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, AllOf(HasSubstr(absl::StrCat("Usage: cadre ", verb.name)),
                                  HasSubstr("--coordinator")));
    EXPECT_EQ(Call(absl::StrCat(verb.name, " --help")).out, result.out);
  }
}

TEST_F(ProgramTest, VersionNamesTheProtocol) {
  const Result result = Run("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, MatchesRegex("cadre [0-9.]+ \\(protocol [0-9]+\\)\n"));
  EXPECT_EQ(Run("version --client").out, result.out);
  const Result unreachable = Run("version --insecure --coordinator 127.0.0.1:1");
  EXPECT_EQ(unreachable.exit_code, 0);
  EXPECT_EQ(unreachable.out, result.out);
  EXPECT_THAT(unreachable.err, HasSubstr("127.0.0.1:1"));
}

TEST(CommandsTest, UsageErrors) {
  const struct {
    const char* words;
    const char* error;
  } cases[] = {
      {"lcoal x", "unknown verb 'lcoal'; did you mean 'local'?"},
      {"frobnicate", "unknown verb 'frobnicate'"},
      {"help statsu", "did you mean 'status'?"},
      {"local --grups 2", "did you mean --groups?"},
      {"status -o yaml", "-o takes table, wide, name, json or jsonl, not 'yaml'"},
      {"status -o", "-o needs a value"},
      {"status --color sometimes", "--color takes auto or never"},
      {"status --timeout soon", "--timeout takes a duration above 0, such as 90s"},
      {"local", "missing argument RUN.textproto"},
      {"stop", "missing argument RUN"},
      {"cordon", "missing argument NAME|HOST|ID"},
      {"scale run-1", "missing flag --groups"},
      {"wait a b", "unexpected argument 'b'"},
      {"runs extra", "unexpected argument 'extra'"},
      {"local x --groups two", "--groups takes a whole number of at least 1, not 'two'"},
      {"local x --groups 0", "--groups takes a whole number of at least 1, not '0'"},
      {"local x --nogroups", "unknown flag --nogroups"},
      {"local x --norestart=1", "unknown flag --norestart"},
      {"trace", "missing argument RUN"},
      {"trace x --steps 101", "--steps takes a whole number of at most 100"},
      {"trace x --group -1", "--group takes a whole number of at least 0"},
      {"plan --workers 1", "missing argument RUN.textproto|MODEL"},
      {"plan x --workers 1 --solver-seconds 1", "only valid with --placement"},
      {"plan --placement g --workers 1", "--workers has no effect with --placement"},
      {"plan --placement g --solver-seconds 0", "--solver-seconds takes a number from 0.001"},
      {"plan --placement=", "--placement requires the file of an operator graph"},
      {"plan x --placement g", "unexpected argument 'x'"},
      {"measure-epochs x --workers 1", "missing flag --target"},
      {"measure-epochs x --target 90 --workers 1",
       "--target takes a number from 1e-06 to 1, not '90'"},
      {"measure-epochs x --target 0.9", "missing flag --workers"},
      {"measure-epochs x --target 0.9 --workers 1,,2", "not '1,,2'"},
      {"measure-epochs x --target 0.9 --workers 1 --rate cubic", "linear, sqrt or none"},
      {"completion tcsh", "bash, zsh and fish"},
  };
  for (const auto& [words, error] : cases) {
    const Result result = Call(words);
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_THAT(result.err, AllOf(StartsWith("cadre: "), HasSubstr(error))) << words;
    EXPECT_EQ(result.out, "") << words;
  }
}

TEST_F(ProgramTest, GoodSpecReachesTheMissingPrograms) {
  WriteSpec(kGoodSpec);
  const Result result = Run("local run.textproto");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cadre-coordinator"));
  // The temporary folder is removed, so its logs are not mentioned.
  EXPECT_THAT(result.err, Not(HasSubstr("logs are in")));
}

// One error from each phase of reading a run file; tests/model tests all rules.
TEST_F(ProgramTest, SpecErrorsHaveALocation) {
  ExpectRefused(With("base_rate", "base_rat"), 11, "base_rat");
  ExpectRefused(With("kernel: 3", "kernel: 30"), 4, "kernel");
  ExpectRefused(With("aggregators: 1", "aggregators: 1 space_ranks: 3"), 13, "space_ranks");
  const std::string idx = R"(data { idx { train_images: "no-such-file" train_labels: "l" )"
                          R"(test_images: "i" test_labels: "m" } })";
  ExpectRefused(With("data { synthetic { train_samples: 256 test_samples: 64 classes: 4 } }", idx),
                8, "no-such-file");
}

TEST_F(ProgramTest, ChecksFlagsLikeTheSpec) {
  WriteSpec(kGoodSpec);
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"run run.textproto --ranks 6 --space_ranks 4", {"space_ranks"}},
      {"local run.textproto --aggregators 0", {"aggregators"}},
      // Two axes of 2 ranks do not fit into a group of 6.
      {"local run.textproto --ranks 6 --space_ranks 2 --model_ranks 2",
       {"cluster.space_ranks", "their product, 4"}},
      {"local run.textproto --from nowhere", {"checkpoint.from", "nowhere"}},
      {"local nowhere.textproto", {"nowhere.textproto"}}};
  for (const auto& [words, errors] : cases) {
    const Result result = Run(words);
    EXPECT_EQ(result.exit_code, 1) << words;
    for (const std::string& error : errors) EXPECT_THAT(result.err, HasSubstr(error)) << words;
    EXPECT_THAT(result.err, Not(HasSubstr("cadre-coordinator"))) << words;
  }
}

// The usage helps with a wrong command line only.
TEST_F(ProgramTest, ErrorsOfFilesAreNotUsageErrors) {
  // A graph of one node, operator set 12.
  const std::string old("\x3a\x08\x0a\x06\x22\x04Relu\x42\x02\x10\x0c", 14);
  for (const std::string& bytes : {old, std::string("text")}) {
    std::ofstream(folder_ + "/net.onnx") << bytes;
    const Result result = Run("import net.onnx");
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(StartsWith("cadre: net.onnx"), Not(HasSubstr("usage:"))));
  }
  std::ofstream(folder_ + "/net.onnx") << old;
  EXPECT_THAT(Run("import net.onnx").err, HasSubstr("uses operator set 12"));
}

TEST(CommandsTest, ChoicesAreChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {"--collectives tree",
       "--collectives takes auto, ring, butterfly, halving-doubling, paper or native, not 'tree'"},
      {"--overlap=", "--overlap takes on or off, not ''"},
      {"--precision fp16", "--precision takes fp32, tf32 or bf16, not 'fp16'"}};
  const std::string device =
      "--device takes cpu, cuda or, for 'cadre local', cuda:N (N = 0, 1, ...), not '";
  for (const char* const verb : {"local", "run"}) {
    const auto error = [&](const std::string& flags) {
      const Result result = Call(absl::StrCat(verb, " run.textproto ", flags));
      EXPECT_EQ(result.exit_code, 2) << verb << " " << flags;
      return result.err;
    };
    for (const auto& [flags, expected] : cases) EXPECT_THAT(error(flags), HasSubstr(expected));
    for (const char* const name : {"tpu", "cuda:x", "cuda:", "cuda:-1", "cuda:1x", "CUDA"}) {
      EXPECT_THAT(error(absl::StrCat("--device ", name)), HasSubstr(device + name + "'"));
    }
  }
  EXPECT_THAT(Call("run run.textproto --device cuda:3").err,
              AllOf(HasSubstr("--device cuda:3 is only valid with 'cadre local'"),
                    HasSubstr("use --device cuda")));
}

TEST_F(ProgramTest, ChoicesAreAccepted) {
  WriteSpec(kGoodSpec);
  for (const char* const flags :
       {"--overlap off --collectives paper", "--collectives ring", "--collectives butterfly",
        "--collectives halving-doubling", "--collectives auto", "--device cuda:3",
        "--device cuda --collectives native", "--device cuda --precision tf32",
        "--device cpu --precision bf16"}) {
    // The flags are valid: the first error is that the other programs are missing.
    const Result result = Run(absl::StrCat("local run.textproto ", flags));
    EXPECT_EQ(result.exit_code, 1) << flags;
    EXPECT_THAT(result.err, HasSubstr("cadre-coordinator")) << flags;
  }
  for (const char* const flags :
       {"--collectives native", "--precision tf32", "--device cpu --precision tf32"}) {
    const Result result = Run(absl::StrCat("local run.textproto ", flags));
    EXPECT_EQ(result.exit_code, 1) << flags;
    EXPECT_THAT(result.err, HasSubstr("set cluster.device to CUDA")) << flags;
  }
}

TEST_F(ProgramTest, MeasureEpochsChecksAllRunsFirst) {
  WriteSpec(kGoodSpec);
  const std::string words = "measure-epochs run.textproto --target 0.9 ";
  Result result = Run(words + "--workers 1,2,1000000");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1000000 workers of 32 samples each are 32000000"),
                                Not(HasSubstr("cadre-coordinator"))));
  WriteSpec(With("stop { epochs: 1 }", "stop { steps: 10 }"));
  result = Run(words + "--workers 1,2");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("missing --max-epochs"));
  // These flags are valid: the first error is the missing program.
  result = Run(words + "--workers 1,2 --max_epochs 3");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cadre-coordinator"));
}

TEST_F(ProgramTest, KeepsATableOfAnotherModel) {
  WriteSpec(kGoodSpec);
  const std::string path = folder_ + "/epochs.textproto";
  const std::string table = "target_accuracy: 0.9 batch_per_worker: 32 model: \"other\"\n";
  std::ofstream(path) << table;
  Result result = Run("measure-epochs run.textproto --target 0.9 --workers 1 -O epochs.textproto");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("holds a table of another model"));
  EXPECT_EQ(ReadFile(path).value_or(""), table);
  std::ofstream(path) << "target_accuracy: 9";
  result = Run("measure-epochs run.textproto --target 0.9 --workers 1 -O epochs.textproto");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("epochs.textproto:1:1: target_accuracy"));
}

TEST_F(ProgramTest, KeepsAFolderOfAnEarlierCluster) {
  WriteSpec(kGoodSpec);
  std::filesystem::create_directory(folder_ + "/old");
  std::ofstream(folder_ + "/old/store.db") << "x";
  const Result result = Run("local run.textproto --dir old");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("earlier cluster"));
  EXPECT_EQ(ReadFile(folder_ + "/old/store.db").value_or(""), "x");
}

TEST_F(ProgramTest, NoCoordinatorIsOneLine) {
  for (const char* words : {"status", "describe run-1", "runs", "members", "watch", "wait run-1",
                            "stop run-1", "trace run-1", "trace run-1 -O -"}) {
    // Nothing listens on port 1 of loopback.
    const Result result =
        Run(absl::StrCat(words, " --insecure --coordinator 127.0.0.1:1 --timeout 500ms"));
    EXPECT_EQ(result.exit_code, 4) << words;
    EXPECT_THAT(result.err, MatchesRegex("cadre: [^\n]*127.0.0.1:1[^\n]*\n")) << words;
    EXPECT_EQ(result.out, "") << words;
  }
}

}  // namespace
}  // namespace cadre
