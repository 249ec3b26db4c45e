// Tests the completions, and the generated scripts in those shells that are installed.
#include "cli/completion.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

// Candidates for the last of the words, without their descriptions.
std::vector<std::string> Complete(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  std::vector<std::string> found = Completions(words);
  for (std::string& word : found) word = word.substr(0, word.find('\t'));
  return found;
}

TEST(CompletionsTest, VerbsAndFlags) {
  EXPECT_THAT(Complete("st"), ElementsAre("status", "stop"));
  EXPECT_THAT(Complete("--quiet -o json st"), ElementsAre("status", "stop"));
  EXPECT_THAT(Complete("local --ov"), ElementsAre("--overlap"));
  EXPECT_THAT(Complete("local --no"), ElementsAre("--no-restart"));
  EXPECT_THAT(Complete("local --qu"), ElementsAre("--quiet"));
  EXPECT_THAT(Complete("trace -O"), ElementsAre("-O"));
  EXPECT_THAT(Complete("stop --me"), IsEmpty()) << "a flag of other verbs";
  EXPECT_THAT(Completions(std::vector<std::string>{"stat"}), ElementsAre(StartsWith("status\t")));
}

TEST(CompletionsTest, Values) {
  EXPECT_THAT(Complete("local x --overlap "), ElementsAre("on", "off"));
  EXPECT_THAT(Complete("local --overlap = of"), ElementsAre("off")) << "bash splits at '='";
  EXPECT_THAT(Complete("--overlap off local --overlap o"), ElementsAre("on", "off"));
  EXPECT_THAT(Complete("runs -o j"), ElementsAre("json", "jsonl"));
  EXPECT_THAT(Complete("local --groups "), IsEmpty()) << "any number";
  EXPECT_THAT(Complete("local --dir x"), ElementsAre(":folders"));
  EXPECT_THAT(Complete("trace -O x"), ElementsAre(":files"));
  EXPECT_THAT(Complete("local --overlap=of"), ElementsAre("off"));
  EXPECT_THAT(Complete("--o=j"), ElementsAre("json", "jsonl"));
  EXPECT_THAT(Complete("local --dir=x"), ElementsAre(":folders"));
  EXPECT_THAT(Complete("local --restart=x"), IsEmpty()) << "a switch";
}

TEST(CompletionsTest, Arguments) {
  EXPECT_THAT(Complete("help memb"), ElementsAre("members"));
  EXPECT_THAT(Complete("completion z"), ElementsAre("zsh"));
  EXPECT_THAT(Complete("plan vgg"), ElementsAre("vgg11", "vgg16", ":files"));
  EXPECT_THAT(Complete("stop run-1 "), IsEmpty());
}

class CompletionScriptTest : public ProgramTest {
 protected:
  CompletionScriptTest() {
    for (const char* shell : {"bash", "zsh", "fish"}) {
      std::ofstream(absl::StrCat(folder_, "/", shell)) << *CompletionScript(shell);
    }
    WriteSpec("x");
    std::filesystem::create_directory(folder_ + "/run-folder");
  }

  // The output of a command in the folder, with cadre in the path.
  std::string Shell(const std::string& shell, const std::string& command) {
    const Result result = RunShell(shell, absl::StrCat("PATH=$PWD:$PATH; ", command));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
  static bool IsInstalled(const std::string& shell) {
    return std::system(absl::StrCat("command -v ", shell, " >/dev/null").c_str()) == 0;
  }

  // The completions of bash for the last of the words.
  std::vector<std::string> Bash(const std::string& words) {
    return absl::StrSplit(
        Shell("bash", absl::StrCat("source ./bash; COMP_WORDS=(", words,
                                   "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _cadre; "
                                   "printf '%s\\n' \"${COMPREPLY[@]}\"")),
        '\n', absl::SkipEmpty());
  }
};

TEST_F(CompletionScriptTest, Bash) {
  EXPECT_THAT(Bash("cadre st"), ElementsAre("status", "stop"));
  EXPECT_THAT(Bash("cadre local --overlap = of"), ElementsAre("off"));
  EXPECT_THAT(Bash("cadre local --overlap ="), ElementsAre("on", "off"));
  EXPECT_THAT(Bash("cadre local --groups ''"), IsEmpty());
  EXPECT_THAT(Bash("cadre plan run"), IsSupersetOf({"run.textproto", "run-folder"}));
  EXPECT_THAT(Bash("cadre local --dir run"), ElementsAre("run-folder"));
  // The user has removed '=' from COMP_WORDBREAKS.
  EXPECT_THAT(Bash("cadre local --overlap=of"), ElementsAre("--overlap=off"));
  EXPECT_THAT(Bash("cadre local --dir=run"), ElementsAre("--dir=run-folder"));
}

// Types its first argument and a tab in an interactive zsh, and prints the completed line.
constexpr char kTypeInZsh[] = R"(
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -Uz compinit; compinit -u -D; source ./zsh; bindkey "^X" show; zle -N show
show() { print -r -- "$BUFFER" >line; }; PS1=ready'
zpty -r shell text '*ready*ready*'
zpty -w -n shell "$1"$'\t\x18'
repeat 300; do [[ -s line ]] && break; sleep 0.1; done
cat line
zpty -d shell
)";

TEST_F(CompletionScriptTest, Zsh) {
  EXPECT_THAT(*CompletionScript("zsh"), StartsWith("#compdef cadre\n"));
  if (!IsInstalled("zsh")) GTEST_SKIP() << "zsh is not installed";
  std::ofstream(folder_ + "/type") << kTypeInZsh;
  const std::pair<const char*, const char*> lines[] = {
      {"cadre stat", "cadre status \n"},
      {"cadre local --overlap of", "cadre local --overlap off \n"},
      {"cadre local --overlap=of", "cadre local --overlap=off \n"},
      {"cadre local --dir=ru", "cadre local --dir=run-folder/\n"},
      {"cadre plan --profile=run.", "cadre plan --profile=run.textproto \n"},
      {"cadre plan run.", "cadre plan run.textproto \n"}};
  for (const auto& [typed, completed] : lines) {
    EXPECT_EQ(Shell("zsh", absl::StrCat("rm -f line; zsh -f ./type '", typed, "'")), completed);
  }
}

TEST_F(CompletionScriptTest, Fish) {
  if (!IsInstalled("fish")) GTEST_SKIP() << "fish is not installed";
  const auto complete = [&](const std::string& words) {
    return Shell("sh",
                 absl::StrCat("HOME=$PWD fish -c \"source ./fish; complete -C '", words, "'\""));
  };
  EXPECT_THAT(complete("cadre stat"), HasSubstr("status\t"));
  EXPECT_THAT(complete("cadre local --overlap "), HasSubstr("off"));
  EXPECT_THAT(complete("cadre plan vgg"), HasSubstr("vgg16"));
  EXPECT_EQ(complete("cadre local --overlap=of"), "--overlap=off\n");
  EXPECT_THAT(complete("cadre local --dir=run"), StartsWith("--dir=run-folder/"));
  EXPECT_THAT(complete("cadre plan --profile=run"), HasSubstr("--profile=run.textproto"));
  EXPECT_THAT(complete("cadre plan run"), HasSubstr("run.textproto"));
}

TEST_F(CompletionScriptTest, RejectsOtherShells) {
  EXPECT_THAT(std::string(CompletionScript("tcsh").status().message()),
              HasSubstr("bash, zsh and fish, not for 'tcsh'"));
}

}  // namespace
}  // namespace cadre
