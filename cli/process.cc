// Children must never outlive this program, and never hang it:
//
//   death    PR_SET_PDEATHSIG kills a child when the thread that started it ends. If the parent
//            died before prctl, the child notices this by its parent's id.
//   signals  Each child has its own process group, so that Ctrl-C in the terminal reaches only this
//            program, which then stops the children in order.
//   exec     A pipe that exec closes reports a failed exec: Start returns the reason instead of a
//            process that has already ended.
//   files    All descriptors beyond stderr are closed on exec, including those of libraries.
#include "cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {
namespace {

// Interval between two checks whether a child has ended.
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
// Exit code of a child whose exec failed; the reason was sent through the pipe.
constexpr int kNotStarted = 127;
// Maximum bytes that LastLines reads.
constexpr std::streamoff kTailBytes = 16 << 10;

// Arguments of the child, prepared before fork: after fork only async-signal-safe calls are
// allowed, because other threads of the parent may have held any lock.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int input;
  // -1: keep the parent's stdout and stderr.
  int output;
  // Receives the errno of a failed exec.
  int report;
  pid_t parent;
};

[[noreturn]] void GiveUp(int report) {
  const int error = errno;
  // There is no other way to report an error.
  [[maybe_unused]] const ssize_t written = write(report, &error, sizeof(error));
  _exit(kNotStarted);
}

// Replaces the child by the program. Runs in the child, so it makes only async-signal-safe calls.
[[noreturn]] void BecomeProgram(const ChildPlan& plan) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) GiveUp(plan.report);
  // If the parent died before prctl, the signal never arrives.
  if (getppid() != plan.parent) _exit(kNotStarted);
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) signal(number, SIG_DFL);
  if (dup2(plan.input, STDIN_FILENO) < 0) GiveUp(plan.report);
  if (plan.output >= 0 &&
      (dup2(plan.output, STDOUT_FILENO) < 0 || dup2(plan.output, STDERR_FILENO) < 0)) {
    GiveUp(plan.report);
  }
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(plan.program, plan.arguments, plan.environment);
  GiveUp(plan.report);
}

Ending EndingOf(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {true, WTERMSIG(wait_status)};
  return {false, WEXITSTATUS(wait_status)};
}

// Calls waitpid, again if a signal interrupts it.
pid_t Wait(pid_t pid, int* wait_status, int flags) {
  pid_t result;
  do {
    result = waitpid(pid, wait_status, flags);
  } while (result < 0 && errno == EINTR);
  return result;
}

absl::StatusOr<int> OpenFile(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  return fd;
}

}  // namespace

std::string Ending::ToString() const {
  if (!signalled) return absl::StrCat("exit code ", code);
  return absl::StrCat("signal ", code, " (", strsignal(code), ")");
}

absl::StatusOr<Process> Process::Start(const ProcessOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const int input, OpenFile("/dev/null", O_RDONLY));
  const absl::Cleanup close_input = [input] { close(input); };
  int output = -1;
  if (!options.log.empty()) {
    CADRE_ASSIGN_OR_RETURN(output, OpenFile(options.log, O_WRONLY | O_CREAT | O_APPEND));
  }
  const absl::Cleanup close_output = [output] {
    if (output >= 0) close(output);
  };
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return ErrnoStatus(errno, "start", options.program);
  const absl::Cleanup close_report = [fd = report[0]] { close(fd); };

  std::vector<char*> arguments;
  arguments.push_back(const_cast<char*>(options.program.c_str()));
  for (const std::string& argument : options.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  // Some readers take the first of two variables of one name, others the last: remove the parent's.
  for (const std::string& entry : options.environment) {
    const absl::string_view name = absl::string_view(entry).substr(0, entry.find('=') + 1);
    environment.erase(
        std::remove_if(environment.begin(), environment.end(),
                       [&](const char* other) { return absl::StartsWith(other, name); }),
        environment.end());
    environment.push_back(const_cast<char*>(entry.c_str()));
  }
  environment.push_back(nullptr);
  const ChildPlan plan = {.program = options.program.c_str(),
                          .arguments = arguments.data(),
                          .environment = environment.data(),
                          .input = input,
                          .output = output,
                          .report = report[1],
                          .parent = getpid()};
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(plan);
  const int fork_error = errno;
  close(report[1]);
  if (pid < 0) return ErrnoStatus(fork_error, "start", options.program);

  Process process(pid);
  // exec closes the pipe; data arrives only if it failed.
  int error = 0;
  ssize_t got;
  do {
    got = read(report[0], &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) {
    process.Kill();
    return ErrnoStatus(error, "run", options.program);
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), ending_(std::exchange(other.ending_, std::nullopt)) {}

Process::~Process() { Kill(); }

std::optional<Ending> Process::Poll() {
  if (pid_ < 0 || ending_.has_value()) return ending_;
  int wait_status = 0;
  if (Wait(pid_, &wait_status, WNOHANG) == pid_) ending_ = EndingOf(wait_status);
  return ending_;
}

std::optional<Ending> Process::WaitUntil(absl::Time deadline) {
  while (!Poll().has_value() && absl::Now() < deadline) {
    absl::SleepFor(std::min(kPollInterval, deadline - absl::Now()));
  }
  return ending_;
}

void Process::Signal(int number) {
  // The child is not reaped yet, so no other process can have its id.
  if (pid_ >= 0 && !Poll().has_value()) kill(pid_, number);
}

Ending Process::Kill() {
  if (pid_ < 0) return {};
  if (!Poll().has_value()) {
    kill(pid_, SIGKILL);
    int wait_status = 0;
    if (Wait(pid_, &wait_status, 0) == pid_) ending_ = EndingOf(wait_status);
  }
  return ending_.value_or(Ending{true, SIGKILL});
}

// Reads only the end of the file, as logs may be large; the first of the lines may be incomplete.
std::vector<std::string> LastLines(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg();
  const std::streamoff from = std::max<std::streamoff>(0, size - kTailBytes);
  std::string text(size - from, '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(file.gcount());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return {};
  std::vector<std::string> all = absl::StrSplit(text, '\n');
  if (all.size() > static_cast<size_t>(lines)) all.erase(all.begin(), all.end() - lines);
  return all;
}

}  // namespace cadre
