// The program `cadre` as people and scripts call it: usage, help, and run specs that are refused
// before any process is started.
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "cli/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
  for (const char* verb : {"local", "run", "runs", "status", "watch", "members", "stop", "wait"}) {
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
  for (const char* words : {"status", "runs", "members", "watch", "wait run-1", "stop run-1"}) {
    // Port 1 of loopback: nobody listens there.
    const Result result = Run(absl::StrCat(words, " --coordinator 127.0.0.1:1 --timeout 500ms"));
    EXPECT_EQ(result.exit_code, 4) << words;
    EXPECT_THAT(result.err, MatchesRegex("cadre: [^\n]*127.0.0.1:1[^\n]*\n")) << words;
    EXPECT_EQ(result.out, "") << words;
  }
}

}  // namespace
}  // namespace cadre
