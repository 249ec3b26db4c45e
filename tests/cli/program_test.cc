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
#include "tests/cli/program.h"

namespace cadre {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

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
  for (const char* verb : {"local", "run", "plan", "runs", "status", "watch", "members", "stop",
                           "wait", "trace", "measure-epochs", "formula"}) {
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
      {"local x --target 0.9", "--target is of 'cadre measure-epochs' alone"},
      {"measure-epochs --target 0.9 --workers 1", "a word is missing"},
      {"measure-epochs x --workers 1", "--target is missing"},
      {"measure-epochs x --target 90 --workers 1", "in (0, 1], not 90"},
      {"measure-epochs x --target 0.9", "--workers is missing"},
      {"measure-epochs x --target 0.9 --workers 1,,2", "not '1,,2'"},
      {"measure-epochs x --target 0.9 --workers 0,1", "not '0,1'"},
      {"measure-epochs x --target 0.9 --workers 1 --batch 0", "--batch must be at least 1"},
      {"measure-epochs x --target 0.9 --workers 1 --rate cubic", "linear, sqrt or none"},
      {"measure-epochs x --target 0.9 --workers 1 --ranks 2",
       "--ranks is not of 'cadre measure-epochs'"},
      {"measure-epochs x --target 0.9 --workers 1 -O a --output b", "give one of them"},
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
                                      "halving-doubling, auto or, on GPUs (--device cuda), "
                                      "native, not 'tree'"));
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

TEST_F(ProgramTest, DevicesAndPrecisionsHaveNames) {
  WriteSpec(kGoodSpec);
  for (const char* const verb : {"local", "run"}) {
    for (const char* const device : {"tpu", "cuda:x", "cuda:", "cuda:-1", "cuda:1x", "CUDA"}) {
      const Result result = Run(absl::StrCat(verb, " run.textproto --device ", device));
      EXPECT_EQ(result.exit_code, 2) << verb << " " << device;
      EXPECT_THAT(result.err, HasSubstr(absl::StrCat("--device takes cpu, cuda or, for 'cadre "
                                                     "local', cuda:N (N = 0, 1, ...), not '",
                                                     device, "'")));
    }
    const Result result = Run(absl::StrCat(verb, " run.textproto --precision fp16"));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("--precision takes fp32, tf32 or bf16, not 'fp16'"));
  }
  // Which GPU is what the workers of a cluster were told.
  Result result = Run("run run.textproto --device cuda:3");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--device cuda:3 is of 'cadre local' alone"),
                                HasSubstr("give --device cuda")));
  // As far as the programs that are not there.
  for (const char* const flags : {"--device cuda:3", "--device cuda --collectives native",
                                  "--device cuda --precision bf16", "--device cpu"}) {
    result = Run(absl::StrCat("local run.textproto ", flags));
    EXPECT_EQ(result.exit_code, 1) << flags;
    EXPECT_THAT(result.err, HasSubstr("cadre-coordinator")) << flags;
  }
  for (const char* const flags :
       {"--collectives native", "--precision bf16", "--device cpu --precision tf32"}) {
    result = Run(absl::StrCat("local run.textproto ", flags));
    EXPECT_EQ(result.exit_code, 1) << flags;
    EXPECT_THAT(result.err, HasSubstr("set cluster.device to CUDA")) << flags;
  }
}

TEST_F(ProgramTest, MeasureEpochsChecksEveryRunBeforeTheFirst) {
  WriteSpec(kGoodSpec);
  const std::string words = "measure-epochs run.textproto --target 0.9 ";
  Result result = Run(words + "--workers 1,2,1000000");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1000000 workers of 32 samples each are 32000000"),
                                Not(HasSubstr("cadre-coordinator"))));
  WriteSpec(With("stop { epochs: 1 }", "stop { steps: 10 }"));
  result = Run(words + "--workers 1,2");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("--max_epochs is missing"));
  // Good as far as the programs that are not there.
  result = Run(words + "--workers 1,2 --max_epochs 3");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("cadre-coordinator"));
}

TEST_F(ProgramTest, ATableOfSomethingElseIsNotOverwritten) {
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
