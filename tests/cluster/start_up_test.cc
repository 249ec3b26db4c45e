// Programs that cannot do their work say why in one line and end with a code that is not zero.
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr absl::Duration kEnd = absl::Seconds(30);

// What the program itself said; logs of the libraries below it are not counted.
std::vector<std::string> Reasons(const Finished& finished, const std::string& program) {
  std::vector<std::string> reasons;
  for (const std::string& line : finished.lines) {
    if (absl::StartsWith(line, program + ": ")) reasons.push_back(line);
  }
  return reasons;
}

class StartUpTest : public ::testing::Test {
 protected:
  void ExpectRefusal(const std::string& program, const std::vector<std::string>& arguments,
                     int exit_code, const ::testing::Matcher<std::string>& reason) {
    const auto finished = RunProgram(program, arguments, kEnd);
    ASSERT_TRUE(finished.ok()) << finished.status();
    EXPECT_EQ(finished->exit_code, exit_code) << ::testing::PrintToString(finished->lines);
    const std::vector<std::string> reasons = Reasons(*finished, program);
    ASSERT_EQ(reasons.size(), 1u) << ::testing::PrintToString(finished->lines);
    EXPECT_THAT(reasons[0], reason);
  }

  Cluster cluster_;
};

TEST_F(StartUpTest, TakenPort) {
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  const std::string& taken = cluster_.coordinator();
  ExpectRefusal(
      "cadre-coordinator",
      {absl::StrCat("--listen=", taken), absl::StrCat("--store=", cluster_.folder(), "/other.db")},
      1, HasSubstr(taken));
  ExpectRefusal("cadre-aggregator",
                {absl::StrCat("--listen=", taken), absl::StrCat("--coordinator=", taken),
                 absl::StrCat("--data_dir=", cluster_.folder(), "/a"), "--name=a"},
                1, HasSubstr(taken));
  ExpectRefusal("cadre-worker",
                {absl::StrCat("--listen=", taken), absl::StrCat("--coordinator=", taken)}, 1,
                HasSubstr(taken));
}

TEST_F(StartUpTest, MissingCoordinator) {
  // A port that was just free: that of a coordinator that is gone.
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  const std::string nobody = cluster_.coordinator();
  cluster_.Kill("coordinator");
  ExpectRefusal("cadre-worker", {absl::StrCat("--coordinator=", nobody), "--dial_timeout=1"}, 4,
                HasSubstr(nobody));
  ExpectRefusal("cadre-aggregator",
                {absl::StrCat("--coordinator=", nobody), "--dial_timeout=1",
                 absl::StrCat("--data_dir=", cluster_.folder(), "/a"), "--name=a"},
                4, HasSubstr(nobody));
  for (const char* verb : {"status", "runs", "members", "watch"}) {
    ExpectRefusal("cadre", {verb, absl::StrCat("--coordinator=", nobody), "--timeout=1s"}, 4,
                  HasSubstr(nobody));
  }
}

TEST_F(StartUpTest, UnopenableStore) {
  ExpectRefusal("cadre-coordinator", {"--listen=127.0.0.1:0", "--store=/no/such/folder/store.db"},
                1, HasSubstr("/no/such/folder/store.db"));
  const std::string text = cluster_.folder() + "/text";
  std::ofstream(text) << std::string(8192, 'x');
  ExpectRefusal("cadre-coordinator", {"--listen=127.0.0.1:0", absl::StrCat("--store=", text)}, 1,
                HasSubstr(text));
}

TEST_F(StartUpTest, LockedStore) {
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  ExpectRefusal("cadre-coordinator",
                {"--listen=127.0.0.1:0", absl::StrCat("--store=", cluster_.store())}, 1,
                HasSubstr("another"));
}

TEST_F(StartUpTest, UnwritableStore) {
  // Files may not grow, as on a full disk, from the start and from the middle of the first
  // transactions on.
  for (const int blocks : {0, 8}) {
    const std::string store = absl::StrCat(cluster_.folder(), "/full-", blocks, ".db");
    const std::string command = absl::StrCat(
        "(trap '' XFSZ; ulimit -f ", blocks, "; exec ", ProgramPath("cadre-coordinator"),
        " --listen=127.0.0.1:0 --store=", store, ") 2>&1 | cat");
    auto process = Process::Start({.program = "/bin/bash",
                                   .arguments = {"-o", "pipefail", "-c", command},
                                   .log = cluster_.folder() + "/out"});
    ASSERT_TRUE(process.ok()) << process.status();
    const auto ending = process->WaitUntil(absl::Now() + kEnd);
    ASSERT_TRUE(ending.has_value()) << "it goes on";
    EXPECT_EQ(*ending, (Ending{false, 1}));
    const Finished finished = {.exit_code = 1, .lines = LastLines(cluster_.folder() + "/out", 100)};
    const std::vector<std::string> reasons = Reasons(finished, "cadre-coordinator");
    ASSERT_EQ(reasons.size(), 1u) << ::testing::PrintToString(finished.lines);
    EXPECT_THAT(reasons[0], HasSubstr(store));
    std::filesystem::remove(cluster_.folder() + "/out");
  }
}

TEST_F(StartUpTest, AggregatorWithoutFolder) {
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  const std::string file = cluster_.folder() + "/file";
  std::ofstream(file) << "not a folder";
  ExpectRefusal("cadre-aggregator",
                {absl::StrCat("--coordinator=", cluster_.coordinator()),
                 absl::StrCat("--data_dir=", file, "/a"), "--name=a"},
                1, HasSubstr(file));
}

TEST_F(StartUpTest, MissingDevice) {
  // Told before it looks for a coordinator: there is none.
  ExpectRefusal("cadre-worker", {"--device=tpu"}, 2, HasSubstr("tpu"));
  ExpectRefusal("cadre-worker", {"--device=cuda:-1"}, 2, HasSubstr("cuda:-1"));
  // Where there are GPUs it is the flag that is wrong; elsewhere no flag would help.
  const bool has_driver = std::filesystem::exists("/dev/nvidiactl");
  ExpectRefusal(
      "cadre-worker", {"--device=cuda:99"}, has_driver ? 2 : 64,
      AnyOf(HasSubstr("no GPU 99"), HasSubstr("no NVIDIA driver"), HasSubstr("no CUDA back end")));
}

TEST_F(StartUpTest, BadFlags) {
  ExpectRefusal("cadre-worker", {"--threads=0"}, 2, HasSubstr("--threads"));
  ExpectRefusal("cadre-worker", {"--listen=0.0.0.0:0"}, 2, HasSubstr("--insecure"));
  ExpectRefusal("cadre-worker", {"--listen=127.0.0.1.example.com:7002"}, 2,
                HasSubstr("--insecure"));
  ExpectRefusal("cadre-aggregator", {}, 2, HasSubstr("--data-dir"));
  ExpectRefusal("cadre-coordinator", {"what"}, 2, HasSubstr("what"));
}

}  // namespace
}  // namespace cadre::testing
