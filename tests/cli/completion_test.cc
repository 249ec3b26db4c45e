// The generated scripts, run by the shells themselves where they are installed.
#include "cli/completion.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "cli/process.h"
#include "cli/verb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using testing::HasSubstr;
using testing::Not;

class CompletionTest : public testing::Test {
 protected:
  CompletionTest() {
    std::string path = testing::TempDir() + "/cadre_completion-XXXXXX";
    folder_ = mkdtemp(path.data());
    for (const char* shell : {"bash", "zsh", "fish"}) {
      std::ofstream(absl::StrCat(folder_, "/", shell)) << *CompletionScript(shell);
    }
    std::ofstream(folder_ + "/my-run.textproto") << "x";
    std::filesystem::create_directory(folder_ + "/my-folder");
  }
  ~CompletionTest() override { std::filesystem::remove_all(folder_); }

  // The output of a command in the folder; its exit code must be 0.
  std::string Shell(const std::string& shell, const std::string& command) {
    auto process = Process::Start({.program = absl::StrCat("/usr/bin/", shell),
                                   .arguments = {"-c", absl::StrCat("cd ", folder_, "; ", command)},
                                   .log = folder_ + "/log"});
    EXPECT_TRUE(process.ok()) << process.status();
    if (!process.ok()) return "";
    const auto ending = process->WaitUntil(absl::Now() + absl::Seconds(60));
    const std::string out = ReadFile(folder_ + "/log").value_or("");
    std::filesystem::remove(folder_ + "/log");
    EXPECT_EQ(ending, (Ending{false, 0})) << out;
    return out;
  }

  // What bash suggests for the last of the words.
  std::string Bash(const std::string& words) {
    return absl::StrCat(" ", Shell("bash", absl::StrCat("source ./bash; COMP_WORDS=(", words,
                                                        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
                                                        "_cadre; echo \"${COMPREPLY[*]} \"")));
  }

  std::string folder_;
};

TEST_F(CompletionTest, Bash) {
  EXPECT_EQ(Bash("cadre st"), " status stop \n");
  EXPECT_EQ(Bash("cadre --quiet -o json st"), " status stop \n");
  EXPECT_EQ(Bash("cadre local --ov"), " --overlap \n");
  EXPECT_EQ(Bash("cadre local --no"), " --no-restart \n");
  EXPECT_EQ(Bash("cadre stop --me"), "  \n") << "a flag of other verbs";
  EXPECT_EQ(Bash("cadre local x --overlap ''"), " on off \n");
  EXPECT_EQ(Bash("cadre local --overlap = of"), " off \n") << "bash splits at '='";
  EXPECT_EQ(Bash("cadre runs -o j"), " json \n");
  EXPECT_EQ(Bash("cadre local --groups ''"), "  \n") << "any number";
  EXPECT_EQ(Bash("cadre help memb"), " members \n");
  EXPECT_EQ(Bash("cadre completion z"), " zsh \n");
  EXPECT_EQ(Bash("cadre plan my-r"), " my-run.textproto \n");
  EXPECT_EQ(Bash("cadre plan vgg"), " vgg11 vgg16 \n");
  EXPECT_EQ(Bash("cadre local --dir my"), " my-folder \n");
  EXPECT_EQ(Bash("cadre trace -O my-r"), " my-run.textproto \n");
}

TEST_F(CompletionTest, Zsh) {
  const std::string script = *CompletionScript("zsh");
  EXPECT_THAT(script, testing::StartsWith("#compdef cadre\n"));
  for (const Verb& verb : Verbs()) {
    EXPECT_THAT(script, HasSubstr(absl::StrCat("\n    ", verb.name, ")\n      _arguments")));
  }
  if (!std::filesystem::exists("/usr/bin/zsh")) GTEST_SKIP() << "zsh is not installed";
  Shell("zsh", "zsh -n ./zsh && compdef() { true } && source ./zsh");
}

TEST_F(CompletionTest, Fish) {
  const std::string script = *CompletionScript("fish");
  for (const Verb& verb : Verbs()) {
    EXPECT_THAT(script, HasSubstr(absl::StrCat("-n __fish_use_subcommand -a ", verb.name, " ")));
  }
  if (!std::filesystem::exists("/usr/bin/fish")) GTEST_SKIP() << "fish is not installed";
  const auto suggestions = [&](const std::string& words) {
    return Shell("fish",
                 absl::StrCat("set -gx HOME $PWD; source ./fish; complete -C '", words, "'"));
  };
  EXPECT_THAT(suggestions("cadre stat"), HasSubstr("status\t"));
  EXPECT_THAT(suggestions("cadre local --overlap "), HasSubstr("on\t"));
  EXPECT_THAT(suggestions("cadre stop --me"), Not(HasSubstr("--mesh")));
  EXPECT_THAT(suggestions("cadre plan vgg"), HasSubstr("vgg16"));
}

TEST(CompletionScriptTest, RefusesOtherShells) {
  EXPECT_THAT(std::string(CompletionScript("tcsh").status().message()),
              HasSubstr("bash, zsh and fish, not for 'tcsh'"));
}

}  // namespace
}  // namespace cadre
