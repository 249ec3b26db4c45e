// Runs the program `cadre`, in a separate folder, as users and scripts do.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temporary_folder.h"

namespace cadre {

inline constexpr char kGoodSpec[] = R"(name: "good"
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

// Runs a command line in this process.
inline Result Call(const std::vector<std::string>& words) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = RunCommandLine(words, {.out = out, .err = err});
  return {code, out.str(), err.str()};
}
inline Result Call(absl::string_view words) {
  return Call(std::vector<std::string>(absl::StrSplit(words, ' ', absl::SkipEmpty())));
}

class FolderTest : public ::testing::Test {
 private:
  const TemporaryFolder temporary_;

 protected:
  const std::string& folder_ = temporary_.path();
};

class ProgramTest : public FolderTest {
 protected:
  // A copy in a folder without the other programs, so that starting one of them fails.
  ProgramTest() { std::filesystem::copy_file(CADRE_PROGRAM, folder_ + "/cadre"); }

  Result Run(const std::string& words) { return RunShell("sh", "exec ./cadre " + words); }

  // Runs a command of a shell in the folder.
  Result RunShell(const std::string& shell, const std::string& command) {
    auto process =
        Process::Start({.program = "/usr/bin/env",
                        .arguments = {"-C", folder_, shell, "-c",
                                      absl::StrCat("exec >out.txt 2>err.txt; ", command)}});
    EXPECT_TRUE(process.ok()) << process.status();
    const auto ending = process->WaitUntil(absl::Now() + absl::Seconds(60));
    EXPECT_TRUE(ending.has_value() && !ending->signalled) << command;
    Result result;
    if (ending.has_value()) result.exit_code = ending->code;
    result.out = ReadFile(folder_ + "/out.txt").value_or("");
    result.err = ReadFile(folder_ + "/err.txt").value_or("");
    return result;
  }

  void WriteSpec(const std::string& text) { std::ofstream(folder_ + "/run.textproto") << text; }

  // Returns the run file with `what`, which must occur in it, replaced by `by`.
  static std::string With(const std::string& what, const std::string& by) {
    const std::string changed = absl::StrReplaceAll(kGoodSpec, {{what, by}});
    EXPECT_NE(changed, kGoodSpec) << what;
    return changed;
  }

  // Expects that `cadre local` rejects the run file before it starts a process, and that the first
  // line of the error names file, line, column and field.
  void ExpectRefused(const std::string& spec, int line, const std::string& field,
                     const std::string& flags = "") {
    WriteSpec(spec);
    const Result result = Run("local run.textproto " + flags);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, ::testing::StartsWith(absl::StrCat("run.textproto:", line, ":")))
        << field;
    EXPECT_THAT(result.err, ::testing::HasSubstr(field));
    EXPECT_THAT(result.err, ::testing::Not(::testing::HasSubstr("cadre-coordinator")))
        << "a process was started";
    EXPECT_EQ(result.out, "");
  }
};

}  // namespace cadre
