// cadre-aggregator as a process: flags, exit codes, SIGTERM, kill and return.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/fake_coordinator.h"
#include "tests/server/testing.h"

namespace cadre {
namespace {

using testing::FakeCoordinator;
using ::testing::HasSubstr;
using testing::ReadAll;
using testing::SmallRun;
using ::testing::StartsWith;
using testing::TemporaryFolder;
using testing::WriteAll;

struct Outcome {
  int exit = -1;
  std::string output;
};

// Runs the program to its end; standard output and error together.
Outcome RunProgram(const std::string& flags) {
  Outcome outcome;
  FILE* pipe = popen(absl::StrCat(CADRE_AGGREGATOR, " ", flags, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (fgets(buffer, sizeof(buffer), pipe) != nullptr) outcome.output += buffer;
  const int status = pclose(pipe);
  outcome.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// The program in the background; killed when the test leaves it.
class Background {
 public:
  explicit Background(std::vector<std::string> flags) {
    flags.insert(flags.begin(), CADRE_AGGREGATOR);
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background() {
    if (pid_ > 0) Stop(SIGKILL);
  }
  // Its exit status once the signal has ended it.
  int Stop(int signal) {
    const pid_t pid = std::exchange(pid_, 0);
    kill(pid, signal);
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }

 private:
  pid_t pid_ = 0;
};

TEST(ProgramTest, HelpListsFlags) {
  const Outcome help = RunProgram("--help");
  EXPECT_THAT(help.output, HasSubstr("cadre-aggregator --coordinator=HOST:PORT --data-dir=DIR"));
  EXPECT_THAT(help.output, HasSubstr("Exit codes"));
  for (const char* flag : {"listen", "advertise", "insecure", "port-file", "dial-timeout"}) {
    EXPECT_THAT(help.output, HasSubstr(absl::StrCat("\n  --", flag)));
  }
}

TEST(ProgramTest, InvalidFlagsAreNamed) {
  const TemporaryFolder folder;
  const std::string good = absl::StrCat("--data_dir=", folder.path(), " --name=a ");
  for (const auto& [flags, what] : std::vector<std::pair<std::string, std::string>>{
           {"--name=a", "--data-dir is required"},
           {absl::StrCat("--data_dir=", folder.path()), "--name is required"},
           {good + "--coordinator=", "--coordinator is required"},
           {good + "--max_streams=0", "--max-streams must be"},
           {good + "--disk_threads=0", "--disk-threads must be"},
           {good + "extra", "extra"}}) {
    const Outcome outcome = RunProgram(flags);
    EXPECT_EQ(outcome.exit, 2) << flags;
    EXPECT_THAT(outcome.output, StartsWith("cadre-aggregator: "));
    EXPECT_THAT(outcome.output, HasSubstr(what));
  }
}

TEST(ProgramTest, FailuresEndWithOneLine) {
  const TemporaryFolder folder;
  WriteAll(folder.path() + "/file", "x");
  const std::string good = absl::StrCat("--data_dir=", folder.path(), "/data --name=a ");
  const Outcome nobody = RunProgram(good + "--coordinator=127.0.0.1:1 --dial_timeout=0");
  EXPECT_EQ(nobody.exit, 4);
  EXPECT_THAT(nobody.output, HasSubstr("127.0.0.1:1"));
  const FakeCoordinator taken;
  const Outcome port = RunProgram(absl::StrCat(good, "--listen=", taken.address()));
  EXPECT_EQ(port.exit, 1);
  EXPECT_THAT(port.output, HasSubstr(taken.address()));
  const Outcome open = RunProgram(good + "--listen=0.0.0.0:0");
  EXPECT_EQ(open.exit, 1);
  EXPECT_THAT(open.output, HasSubstr("--insecure"));
  const Outcome data = RunProgram(absl::StrCat("--name=a --data_dir=", folder.path(), "/file"));
  EXPECT_EQ(data.exit, 1);
  EXPECT_THAT(data.output, HasSubstr("/file"));
}

TEST(ProgramTest, ServesUntilSigterm) {
  FakeCoordinator coordinator;
  const TemporaryFolder folder;
  const std::vector<std::string> flags = {
      "--coordinator=" + coordinator.address(), "--data_dir=" + folder.path() + "/data",
      "--name=shard-keeper", "--port_file=" + folder.path() + "/port"};
  v1::CoordinatorMessage open;
  *open.mutable_open_run() = SmallRun().Open();
  v1::RunOpened opened;
  {
    Background program(flags);
    EXPECT_EQ(coordinator.Receive(v1::MemberMessage::kHello).hello().name(), "shard-keeper");
    coordinator.Send(open);
    opened = coordinator.Receive(v1::MemberMessage::kRunOpened).run_opened();
    EXPECT_EQ(WTERMSIG(program.Stop(SIGKILL)), SIGKILL);
  }
  Background program(flags);
  const v1::Hello hello = coordinator.Receive(v1::MemberMessage::kHello).hello();
  ASSERT_EQ(hello.shards_size(), 1);
  EXPECT_EQ(hello.shards(0).digest(), opened.digest());
  EXPECT_EQ(absl::StrCat("127.0.0.1:", ReadAll(folder.path() + "/port")), hello.address() + "\n");
  const int status = program.Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(coordinator.Receive(v1::MemberMessage::kGoodbye).has_goodbye());
}

}  // namespace
}  // namespace cadre
