// A rank dies in the middle of a call: the others learn of it at once, whomever they are waiting
// for, on every channel.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "tests/worker/transport/meeting.h"

namespace cadre {
namespace {

// The transports' own timeout is far longer, so that it cannot be what ends the wait.
constexpr absl::Duration kTimeout = absl::Minutes(5);
// What we promise is a scheduling delay; what a loaded machine gets is this.
constexpr absl::Duration kGenerous = absl::Seconds(2);

// More than shared memory holds, so that ranks are stuck in the middle of messages.
constexpr size_t kBytes = 1 << 20;

enum class End { kAborts, kLeaves };

struct Case {
  Wire wire;
  int ranks;
  End end;
};

class KillTest : public ::testing::TestWithParam<Case> {};

TEST_P(KillTest, OtherRanksFailImmediately) {
  const int ranks = GetParam().ranks;
  for (int victim = 0; victim < ranks; ++victim) {
    Transports group = MakeTransports(GetParam().wire, ranks, kTimeout);
    std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
    std::vector<absl::Time> failed(static_cast<size_t>(ranks));
    std::atomic<int> running{0};
    absl::Time died;
    OnRanks(ranks, [&](int rank) {
      const auto i = static_cast<size_t>(rank);
      Meeting meeting(*group[i], kBytes);
      for (uint32_t round = 0; statuses[i].ok(); ++round) {
        if (rank == victim && round == 3) {
          // Wait until the others are in the call that will never end.
          while (running.load() < 3 * ranks + ranks - 1) std::this_thread::yield();
          died = absl::Now();
          if (GetParam().end == End::kAborts) group[i]->Abort(absl::AbortedError("killed"));
          group[i].reset();
          return;
        }
        ++running;
        statuses[i] = meeting.Run(Transport::kBackground, round);
      }
      failed[i] = absl::Now();
    });
    absl::Duration slowest = absl::ZeroDuration();
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      const auto i = static_cast<size_t>(rank);
      EXPECT_EQ(statuses[i].code(), absl::StatusCode::kUnavailable) << statuses[i];
      slowest = std::max(slowest, failed[i] - died);
    }
    EXPECT_LT(slowest, kGenerous);
    RecordProperty("slowest_ms_victim_" + std::to_string(victim),
                   std::to_string(absl::ToDoubleMilliseconds(slowest)));
  }
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return WireName(info.param.wire) + std::to_string(info.param.ranks) +
         (info.param.end == End::kAborts ? "Aborts" : "Leaves");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, KillTest,
    ::testing::Values(Case{Wire::kThreads, 3, End::kAborts}, Case{Wire::kThreads, 4, End::kLeaves},
                      Case{Wire::kSharedMemory, 2, End::kAborts},
                      Case{Wire::kSharedMemory, 4, End::kLeaves}, Case{Wire::kTcp, 2, End::kAborts},
                      Case{Wire::kTcp, 3, End::kLeaves}, Case{Wire::kTcp, 5, End::kAborts},
                      Case{Wire::kTcp, 5, End::kLeaves}),
    CaseName);

// What a child process does: joins as `rank`, tells the parent through `ready` after the first
// call, goes on until an error, and exits with its code.
[[noreturn]] void RunChild(int rank, bool shared_memory, int ports_in, int port_out, int ready) {
  auto listener = TcpListener::Listen({});
  if (!listener.ok()) _exit(100);
  const int port = (*listener)->port();
  if (write(port_out, &port, sizeof port) != sizeof port) _exit(101);
  std::vector<std::string> peers;
  for (int i = 0; i < 3; ++i) {
    int peer = 0;
    if (read(ports_in, &peer, sizeof peer) != sizeof peer) _exit(102);
    peers.push_back("127.0.0.1:" + std::to_string(peer));
  }
  auto transport = ConnectGroup(**listener, {.run = "fork", .generation = 1}, rank, peers,
                                {.deadline = absl::Now() + absl::Seconds(30),
                                 .timeout = kTimeout,
                                 .shared_memory = shared_memory});
  if (!transport.ok()) _exit(103);
  const LinkKind kind = shared_memory ? LinkKind::kSharedMemory : LinkKind::kTcp;
  if ((*transport)->link(rank == 0 ? 1 : 0) != kind) _exit(105);
  Meeting meeting(**transport, kBytes);
  absl::Status status = meeting.Run(0);
  if (!status.ok() || write(ready, "r", 1) != 1) _exit(104);
  while (status.ok()) status = meeting.Run(0);
  _exit(static_cast<int>(status.code()));
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  int ends[2] = {-1, -1};
};

// No goodbye, no destructor: the kernel closes the sockets of a killed process.
class ProcessKillTest : public ::testing::TestWithParam<bool> {};

TEST_P(ProcessKillTest, SurvivorsFailImmediately) {
  Pipe port_out[3];
  Pipe ports_in[3];
  Pipe ready;
  pid_t children[3];
  for (int rank = 0; rank < 3; ++rank) {
    children[rank] = fork();
    ASSERT_GE(children[rank], 0);
    if (children[rank] == 0) {
      RunChild(rank, GetParam(), ports_in[rank].ends[0], port_out[rank].ends[1], ready.ends[1]);
    }
  }
  int ports[3];
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(read(port_out[rank].ends[0], &ports[rank], sizeof(int)),
              static_cast<ssize_t>(sizeof(int)));
  }
  for (Pipe& pipe : ports_in) {
    ASSERT_EQ(write(pipe.ends[1], ports, sizeof ports), static_cast<ssize_t>(sizeof ports));
  }
  char byte = 0;
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(read(ready.ends[0], &byte, 1), 1);
  const absl::Time killed = absl::Now();
  ASSERT_EQ(kill(children[1], SIGKILL), 0);
  for (const int rank : {0, 2, 1}) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    if (rank == 1) {
      EXPECT_TRUE(WIFSIGNALED(status));
      continue;
    }
    ASSERT_TRUE(WIFEXITED(status)) << status;
    EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(absl::StatusCode::kUnavailable));
  }
  const absl::Duration took = absl::Now() - killed;
  EXPECT_LT(took, kGenerous);
  RecordProperty("milliseconds", std::to_string(absl::ToDoubleMilliseconds(took)));
}

INSTANTIATE_TEST_SUITE_P(Links, ProcessKillTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "SharedMemory" : "Tcp";
                         });

}  // namespace
}  // namespace cadre
