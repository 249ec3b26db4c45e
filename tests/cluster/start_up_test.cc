// Tests that programs that cannot start report one line and a non-zero exit code, and that SIGTERM
// ends running ones with exit code 0.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kEnd = absl::Seconds(30);

// The lines that the program itself has printed, without those of libraries.
std::vector<std::string> Reasons(const Finished& finished, const std::string& program) {
  std::vector<std::string> reasons;
  for (const std::string& line : finished.lines) {
    if (absl::StartsWith(line, program + ": ")) reasons.push_back(line);
  }
  return reasons;
}

class StartUpTest : public ::testing::Test {
 protected:
  // Runs the program without TLS: it ends before it makes a connection, or for want of one.
  void ExpectRefusal(const std::string& program, std::vector<std::string> arguments, int exit_code,
                     const ::testing::Matcher<std::string>& reason) {
    arguments.push_back("--insecure");
    ExpectRefusalAsGiven(program, arguments, exit_code, reason);
  }
  void ExpectRefusalAsGiven(const std::string& program, const std::vector<std::string>& arguments,
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
                 absl::StrCat("--data-dir=", cluster_.folder(), "/a"), "--name=a"},
                1, HasSubstr(taken));
  ExpectRefusal("cadre-worker",
                {absl::StrCat("--listen=", taken), absl::StrCat("--coordinator=", taken)}, 1,
                HasSubstr(taken));
}

TEST_F(StartUpTest, VersionsOfClientAndCoordinator) {
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  const std::string lines =
      RunCadre({"version", absl::StrCat("--coordinator=", cluster_.coordinator())});
  EXPECT_THAT(lines, AllOf(HasSubstr("cadre 0."), HasSubstr("\ncoordinator 0."),
                           HasSubstr(cluster_.coordinator())));
}

TEST_F(StartUpTest, MissingCoordinator) {
  // No program listens on the port of a killed coordinator.
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  const std::string address = cluster_.coordinator();
  cluster_.Kill("coordinator");
  ExpectRefusal("cadre-worker", {absl::StrCat("--coordinator=", address), "--dial-timeout=1"}, 4,
                HasSubstr(address));
  ExpectRefusal("cadre-aggregator",
                {absl::StrCat("--coordinator=", address), "--dial-timeout=1",
                 absl::StrCat("--data-dir=", cluster_.folder(), "/a"), "--name=a"},
                4, HasSubstr(address));
  for (const char* verb : {"status", "runs", "members", "watch"}) {
    ExpectRefusal("cadre", {verb, absl::StrCat("--coordinator=", address), "--timeout=1s"}, 4,
                  HasSubstr(address));
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
  // As on a full disk, files may not grow: from the start, or after the first transactions have
  // begun.
  for (const int blocks : {0, 8}) {
    const std::string store = absl::StrCat(cluster_.folder(), "/full-", blocks, ".db");
    const std::string command = absl::StrCat(
        "(trap '' XFSZ; ulimit -f ", blocks, "; exec ", ProgramPath("cadre-coordinator"),
        " --insecure --listen=127.0.0.1:0 --store=", store, ") 2>&1 | cat");
    auto process = Process::Start({.program = "/bin/bash",
                                   .arguments = {"-o", "pipefail", "-c", command},
                                   .log = cluster_.folder() + "/out"});
    ASSERT_TRUE(process.ok()) << process.status();
    const auto ending = process->WaitUntil(absl::Now() + kEnd);
    ASSERT_TRUE(ending.has_value()) << "the coordinator does not end";
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
                 absl::StrCat("--data-dir=", file, "/a"), "--name=a"},
                1, HasSubstr(file));
}

TEST_F(StartUpTest, MissingDevice) {
  // The error is reported before the worker connects; no coordinator is running.
  ExpectRefusal("cadre-worker", {"--device=tpu"}, 2, HasSubstr("tpu"));
  ExpectRefusal("cadre-worker", {"--device=cuda:-1"}, 2, HasSubstr("cuda:-1"));
  // With a driver, the number of the GPU is wrong (a bad flag); without a driver, no flag can help.
  const bool has_driver = std::filesystem::exists("/dev/nvidiactl");
  ExpectRefusal(
      "cadre-worker", {"--device=cuda:99"}, has_driver ? 2 : 64,
      AnyOf(HasSubstr("no GPU 99"), HasSubstr("no NVIDIA driver"), HasSubstr("no CUDA back end")));
}

TEST_F(StartUpTest, BadFlags) {
  ExpectRefusal("cadre-worker", {"--threads=-1"}, 2, HasSubstr("--threads"));
  ExpectRefusal("cadre-worker", {"--numa-node=-2"}, 2, HasSubstr("--numa-node"));
  ExpectRefusal("cadre-worker", {"--numa-node=8191"}, 2, HasSubstr("NUMA node 8191"));
  ExpectRefusal("cadre-worker", {"--exchange-silence=0"}, 2, HasSubstr("--exchange-silence"));
  ExpectRefusal("cadre-aggregator", {"--name=a"}, 2, HasSubstr("--data-dir is required"));
  ExpectRefusal("cadre-aggregator", {"--data_dir=d"}, 2, HasSubstr("--name is required"));
  const std::vector<std::string> valid = {"--data-dir=d", "--name=a"};
  for (const char* flag : {"--coordinator=", "--max-streams=0", "--disk-threads=0", "extra"}) {
    std::vector<std::string> arguments = valid;
    arguments.push_back(flag);
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    ExpectRefusal("cadre-aggregator", arguments, 2, HasSubstr(name));
  }
  ExpectRefusal("cadre-coordinator", {"what"}, 2, HasSubstr("what"));
  // The other roots exist.
  ExpectRefusal("cadre-worker", {"--data-root=/", "--data-root", "/no-such-folder"}, 2,
                HasSubstr("cannot open --data-root /no-such-folder"));
  ExpectRefusal("cadre-worker", {"--checkpoint-root=/no-such-folder", "--checkpoint_root=/"}, 2,
                HasSubstr("cannot open --checkpoint-root /no-such-folder"));
  ExpectRefusal("cadre-aggregator", {"--data-dir=d", "--name=a", "--checkpoint-root=/none"}, 2,
                HasSubstr("cannot open --checkpoint-root /none"));
  ExpectRefusal("cadre-worker", {"--name=W 1"}, 2, HasSubstr("--name 'W 1' is not a name"));
  ExpectRefusal("cadre-aggregator", {"--data-dir=d", "--name=\x1b[2J"}, 2,
                HasSubstr("--name '\\x1b[2J' is not a name"));
}

// The worker executes itself again with them, since OpenMP reads its environment before main.
TEST_F(StartUpTest, WorkerMakesSettingsOfOpenMp) {
  const auto read = [&](const std::string& name, const std::string& file) {
    std::ifstream stream(absl::StrCat("/proc/", cluster_.process(name).pid(), "/", file));
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  unsetenv("GOMP_SPINCOUNT");
  unsetenv("OMP_WAIT_POLICY");
  ASSERT_EQ(cluster_.StartAll(/*aggregators=*/0, /*workers=*/1), absl::OkStatus());
  EXPECT_THAT(read("worker-0", "environ"), HasSubstr("GOMP_SPINCOUNT=2000"));
  EXPECT_EQ(read("worker-0", "comm"), "cadre-worker\n");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  ASSERT_EQ(cluster_.StartWorker("worker-1"), absl::OkStatus());
  unsetenv("OMP_WAIT_POLICY");
  const auto both = [](const v1::StatusReply& status) { return status.workers_size() == 2; };
  ASSERT_EQ(cluster_.Await(both, kEnd, "both have joined").status(), absl::OkStatus());
  EXPECT_THAT(read("worker-1", "environ"), Not(HasSubstr("GOMP_SPINCOUNT")))
      << "settings of the user prevail";
}

// Also on loopback: other users of the host reach it.
TEST_F(StartUpTest, CredentialsAreRequired) {
  unsetenv("CADRE_TLS");
  const auto both = AllOf(HasSubstr("--tls=DIR"), HasSubstr("--insecure"));
  ExpectRefusalAsGiven("cadre-coordinator", {"--listen=127.0.0.1:0"}, 2, both);
  ExpectRefusalAsGiven("cadre-aggregator", {"--data-dir=d", "--name=a"}, 2, both);
  ExpectRefusalAsGiven("cadre-worker", {}, 2, both);
  ExpectRefusalAsGiven("cadre", {"status"}, 2, both);
  ExpectRefusalAsGiven("cadre-worker", {"--tls=/no/such/folder"}, 2,
                       HasSubstr("/no/such/folder/ca.crt"));
}

TEST_F(StartUpTest, CredentialsOfOtherRoleAreRefused) {
  ASSERT_EQ(cluster_.Issue("w", Role::kWorker, absl::Now() + absl::Hours(1)), absl::OkStatus());
  ExpectRefusalAsGiven(
      "cadre-aggregator",
      {"--data-dir=d", "--name=a", absl::StrCat("--tls=", cluster_.folder(), "/tls/w")}, 2,
      HasSubstr("for role worker, not aggregator"));
}

TEST_F(StartUpTest, AggregatorHelpListsFlags) {
  const auto help = RunProgram("cadre-aggregator", {"--help"}, kEnd);
  ASSERT_TRUE(help.ok()) << help.status();
  const std::string text = absl::StrJoin(help->lines, "\n");
  EXPECT_THAT(text, HasSubstr("cadre-aggregator --coordinator=HOST:PORT --data-dir=DIR"));
  EXPECT_THAT(text, HasSubstr("Exit codes"));
  for (const char* flag : {"listen", "advertise", "tls", "insecure", "port-file", "dial-timeout"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\n  --", flag)));
  }
}

TEST_F(StartUpTest, AggregatorWritesPortAndLeavesOnSigterm) {
  ASSERT_EQ(cluster_.StartAll(1, 0), absl::OkStatus());
  const auto joined = cluster_.client().Status();
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_EQ(joined->aggregators_size(), 1);
  const auto port = ReadFile(cluster_.folder() + "/aggregator-0/port");
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_EQ(absl::StrCat(joined->aggregators(0).member().address(), "\n"),
            absl::StrCat("127.0.0.1:", *port));
  cluster_.Signal("aggregator-0", SIGTERM);
  const auto ending = cluster_.process("aggregator-0").WaitUntil(absl::Now() + kEnd);
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(*ending, (Ending{false, 0}));
  // Goodbye ends its membership before the lease expires.
  const auto status = cluster_.client().Status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->aggregators_size(), 0);
}

}  // namespace
}  // namespace cadre::testing
