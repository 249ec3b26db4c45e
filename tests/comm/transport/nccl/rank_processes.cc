#include "tests/comm/transport/nccl/rank_processes.h"

#include <glog/logging.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "comm/transport/connect_group.h"
#include "comm/transport/nccl/nccl_api.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"
#include "device/gpu_environment.h"

extern char** environ;

namespace cadre {
namespace {

// Descriptor of the rank's socket to the test.
constexpr int kLine = 3;
constexpr char kRankFlag[] = "--as-rank";

// Reads byte by byte, so that no byte after the line is consumed.
std::string ReadLine(int fd) {
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

void WriteLine(int fd, const std::string& line) {
  const std::string text = line + "\n";
  CHECK_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text))
      << std::strerror(errno);
}

class RankProcess {
 public:
  RankProcess(const std::string& task, int rank) {
    std::array<int, 2> ends{};
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0)
        << std::strerror(errno);
    line_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // dup2 clears FD_CLOEXEC, but not if both descriptors are equal.
    const int moved = ends[1] == kLine ? dup(ends[1]) : ends[1];
    posix_spawn_file_actions_adddup2(&actions, moved, kLine);
    const std::string number = absl::StrCat(rank);
    std::array<const char*, 5> arguments = {"/proc/self/exe", kRankFlag, task.c_str(),
                                            number.c_str(), nullptr};
    // Every rank has a different host id; all traffic uses loopback.
    std::vector<std::string> own = {absl::StrCat("NCCL_HOSTID=cadre-test-", rank),
                                    "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1"};
    std::vector<char*> environment;
    for (char** each = environ; *each != nullptr; ++each) environment.push_back(*each);
    for (std::string& each : own) environment.push_back(each.data());
    environment.push_back(nullptr);
    const int error = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr,
                                  const_cast<char**>(arguments.data()), environment.data());
    CHECK_EQ(error, 0) << std::strerror(error);
    posix_spawn_file_actions_destroy(&actions);
    if (moved != ends[1]) close(moved);
    close(ends[1]);
  }
  ~RankProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(line_);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int line() const { return line_; }
  // Returns the wait status; adds a test failure at `deadline`.
  int Wait(absl::Time deadline) {
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (absl::Now() > deadline) {
        ADD_FAILURE() << "a rank did not exit";
        return -1;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  int line_ = -1;
};

}  // namespace

absl::Status CheckRankSupport() {
  if (const auto gpu = DescribeCuda(RealCudaApi()); !gpu.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("needs a GPU: ", gpu.status().message()));
  }
  if (const auto nccl = LoadNccl({}); !nccl.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("needs NCCL: ", nccl.status().message()));
  }
  return absl::OkStatus();
}

std::vector<int> RunRankProcesses(const std::string& task, int ranks) {
  SetGpuEnvironment();
  const absl::Time deadline = absl::Now() + kRankLimit;
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(std::make_unique<RankProcess>(task, rank));
  }
  std::vector<std::string> addresses;
  for (const auto& process : processes) addresses.push_back(ReadLine(process->line()));
  for (const auto& process : processes) {
    WriteLine(process->line(), absl::StrJoin(addresses, " "));
  }
  std::vector<int> statuses;
  for (const auto& process : processes) statuses.push_back(process->Wait(deadline));
  return statuses;
}

std::optional<RankTask> ParseRankArguments(int argc, char** argv) {
  RankTask parsed;
  if (argc != 4 || argv[1] != std::string(kRankFlag) || !absl::SimpleAtoi(argv[3], &parsed.rank)) {
    return std::nullopt;
  }
  parsed.task = argv[2];
  return parsed;
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectRankProcess(int rank) {
  auto listener = TcpListener::Listen({});
  if (!listener.ok()) return listener.status();
  WriteLine(kLine, std::string((*listener)->address()));
  const std::vector<std::string> peers = absl::StrSplit(ReadLine(kLine), ' ');
  return ConnectGroup(**listener, {.protocol = 7, .run = "test", .generation = 1}, rank, peers,
                      {.deadline = absl::Now() + kRankLimit, .timeout = kRankLimit});
}

}  // namespace cadre
