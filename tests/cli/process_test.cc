#include "cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kExitLimit = absl::Seconds(20);

absl::StatusOr<Process> Shell(const std::string& script, const std::string& log = "") {
  return Process::Start({.program = "/bin/sh", .arguments = {"-c", script}, .log = log});
}

TEST(ProcessTest, ReportsTheEnding) {
  auto process = Shell("exit 7");
  ASSERT_TRUE(process.ok()) << process.status();
  const auto ending = process->WaitUntil(absl::Now() + kExitLimit);
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(*ending, (Ending{false, 7}));
  EXPECT_EQ(ending->ToString(), "exit code 7");
  // The process is reaped: another query returns the same ending, and signals have no effect.
  process->Signal(SIGKILL);
  EXPECT_EQ(process->Poll(), ending);
  EXPECT_EQ(process->Kill(), *ending);
}

TEST(ProcessTest, AddsToTheEnvironment) {
  auto process = Process::Start({.program = "/bin/sh",
                                 .arguments = {"-c", R"(test "$CADRE_A/$CADRE_B" = "1/two words")"},
                                 .environment = {"CADRE_A=0", "CADRE_B=two words", "CADRE_A=1"}});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(process->WaitUntil(absl::Now() + kExitLimit), (Ending{false, 0}));
}

TEST(ProcessTest, RunsUntilItIsKilled) {
  auto process = Shell("while :; do sleep 1; done");
  ASSERT_TRUE(process.ok());
  EXPECT_FALSE(process->Poll().has_value());
  EXPECT_FALSE(process->WaitUntil(absl::Now() + absl::Milliseconds(20)).has_value());
  const pid_t pid = process->pid();
  EXPECT_EQ(getpgid(pid), pid) << "a group of its own";
  EXPECT_EQ(process->Kill(), (Ending{true, SIGKILL}));
  EXPECT_THAT(process->Poll()->ToString(), HasSubstr("signal 9 (Killed)"));
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(ProcessTest, DestructorKills) {
  pid_t pid = 0;
  {
    auto process = Shell("while :; do sleep 1; done");
    ASSERT_TRUE(process.ok());
    pid = process->pid();
    // The new owner is responsible for ending the process.
    Process moved = std::move(*process);
    EXPECT_EQ(moved.pid(), pid);
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ProcessTest, MissingProgramFailsImmediately) {
  const auto process = Process::Start({.program = "/no/such/program"});
  ASSERT_TRUE(absl::IsNotFound(process.status())) << process.status();
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("/no/such/program"));
  EXPECT_FALSE(Process::Start({.program = "/"}).ok());
  const auto no_log = Process::Start({.program = "/bin/sh", .log = "/no/such/folder/log"});
  EXPECT_EQ(no_log.status().message(),
            "cannot open /no/such/folder/log: No such file or directory");
}

TEST(ProcessTest, AppendsToTheLog) {
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  for (const char* word : {"one", "two"}) {
    auto process = Shell(absl::StrCat("echo ", word, "; echo err >&2"), log);
    ASSERT_TRUE(process.ok());
    ASSERT_TRUE(process->WaitUntil(absl::Now() + kExitLimit).has_value());
  }
  EXPECT_THAT(LastLines(log, 10), ElementsAre("one", "err", "two", "err"));
  EXPECT_THAT(LastLines(log, 2), ElementsAre("two", "err"));
}

TEST(ProcessTest, ChildInheritsNoSignalsOrFiles) {
  // The child inherits neither blocked signals nor open files of the parent.
  sigset_t set, old;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  const int leak = open("/dev/null", O_RDONLY);  // without O_CLOEXEC on purpose
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  auto process = Shell(absl::StrCat("test -e /proc/self/fd/", leak, " && echo leaked; echo ready; ",
                                    "while :; do sleep 0.02; done"),
                       log);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  close(leak);
  ASSERT_TRUE(process.ok());
  const absl::Time deadline = absl::Now() + kExitLimit;
  while (LastLines(log, 1) != std::vector<std::string>{"ready"} && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  process->Signal(SIGTERM);
  const auto ending = process->WaitUntil(deadline);
  ASSERT_TRUE(ending.has_value()) << "SIGTERM was blocked in the child";
  EXPECT_EQ(*ending, (Ending{true, SIGTERM}));
  EXPECT_THAT(LastLines(log, 10), ElementsAre("ready"));
}

// If a parent is killed, its children end as well.
TEST(ProcessTest, DiesWithItsParent) {
  // Orphans become children of this process, so that it can observe their end.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    auto child = Shell("while :; do sleep 1; done");
    const pid_t pid = child.ok() ? child->pid() : -1;
    [[maybe_unused]] const ssize_t written = write(report[1], &pid, sizeof(pid));
    while (true) pause();
  }
  pid_t child = -1;
  ASSERT_EQ(read(report[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  ASSERT_GT(child, 0);
  EXPECT_EQ(kill(child, 0), 0);
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  int wait_status = 0;
  ASSERT_EQ(waitpid(parent, &wait_status, 0), parent);

  pid_t reaped = 0;
  const absl::Time deadline = absl::Now() + kExitLimit;
  while (reaped == 0 && absl::Now() < deadline) {
    reaped = waitpid(child, &wait_status, WNOHANG);
    absl::SleepFor(absl::Milliseconds(5));
  }
  ASSERT_EQ(reaped, child) << "the child outlived its parent";
  EXPECT_TRUE(WIFSIGNALED(wait_status));
  EXPECT_EQ(WTERMSIG(wait_status), SIGKILL);
  close(report[0]);
  close(report[1]);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(LastLinesTest, MissingEmptyAndLongFiles) {
  EXPECT_THAT(LastLines("/no/such/file", 3), IsEmpty());
  const TemporaryFolder folder;
  const std::string path = folder / "lines";
  std::ofstream(path) << "\n\n";
  EXPECT_THAT(LastLines(path, 3), IsEmpty());
  std::ofstream(path) << std::string(100000, 'x') << "\nlast";
  EXPECT_THAT(LastLines(path, 1), ElementsAre("last"));
  EXPECT_LE(LastLines(path, 2)[0].size(), 16u << 10);
}

}  // namespace
}  // namespace cadre
