// The program `cadre` in a folder of its own, for tests that call it as people and scripts do.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "cli/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest() {
    std::string path = ::testing::TempDir() + "/cadre_program-XXXXXX";
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
    EXPECT_THAT(result.err, ::testing::StartsWith(absl::StrCat("run.textproto:", line, ":")))
        << field;
    EXPECT_THAT(result.err, ::testing::HasSubstr(field));
    EXPECT_THAT(result.err, ::testing::Not(::testing::HasSubstr("cadre-coordinator")))
        << "a process was started";
    EXPECT_EQ(result.out, "");
  }

  std::string folder_;
  std::string program_;
};

}  // namespace cadre
