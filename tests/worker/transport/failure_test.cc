// Loss of a rank during calls: all other ranks fail immediately, whichever peer they wait for, on
// every channel.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "tests/worker/transport/messages.h"
#include "tests/worker/transport/ranks.h"

namespace cadre {
namespace {

// The timeout of the transports is much longer than the tests' timeout, so it cannot end a wait.
constexpr absl::Duration kTimeout = absl::Minutes(5);
// Limit for "immediately": a scheduling delay on a loaded machine.
constexpr absl::Duration kLimit = absl::Seconds(2);

// More than the rings of shared memory hold, so that ranks block in the middle of messages.
constexpr size_t kBytes = 2 << 20;

enum class End { kAborts, kLeaves };

struct Case {
  Wire wire;
  int ranks;
  End end;
};

class LossTest : public ::testing::TestWithParam<Case> {};

TEST_P(LossTest, OtherRanksFailImmediately) {
  const int ranks = GetParam().ranks;
  for (int victim = 0; victim < ranks; ++victim) {
    Transports group = MakeTransports(GetParam().wire, ranks, kTimeout);
    std::vector<absl::Time> failed(ranks);
    std::atomic<int> running{0};
    absl::Time lost;
    const auto statuses = StatusesOnRanks(ranks, [&](int rank) {
      PairwiseExchange exchange(*group[rank], kBytes);
      absl::Status status;
      for (uint32_t round = 0; status.ok(); ++round) {
        if (rank == victim && round == 3) {
          // Wait until the others have started the call that cannot complete.
          while (running.load() < 3 * ranks + ranks - 1) std::this_thread::yield();
          lost = absl::Now();
          if (GetParam().end == End::kAborts) group[rank]->Abort(absl::AbortedError("aborted"));
          group[rank].reset();
          return absl::OkStatus();
        }
        ++running;
        status = exchange.Run(Transport::kBackground, round);
      }
      failed[rank] = absl::Now();
      return status;
    });
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kUnavailable) << statuses[rank];
      EXPECT_LT(failed[rank] - lost, kLimit);
    }
  }
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return WireName(info.param.wire) + std::to_string(info.param.ranks) +
         (info.param.end == End::kAborts ? "Aborts" : "Leaves");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LossTest,
    ::testing::Values(Case{Wire::kThreads, 3, End::kAborts}, Case{Wire::kThreads, 4, End::kLeaves},
                      Case{Wire::kSharedMemory, 2, End::kAborts},
                      Case{Wire::kSharedMemory, 4, End::kLeaves}, Case{Wire::kTcp, 2, End::kAborts},
                      Case{Wire::kTcp, 3, End::kLeaves}, Case{Wire::kTcp, 5, End::kAborts},
                      Case{Wire::kTcp, 5, End::kLeaves}),
    CaseName);

absl::Status ExchangeUntilError(Transport& transport, int channel, absl::Status status = {}) {
  PairwiseExchange exchange(transport, kBytes);
  while (status.ok()) status = exchange.Run(channel);
  return status;
}

// A child process: joins as `rank`, writes a byte to `ready` after the first call, makes calls on
// two channels until both have failed, and exits with the code of the error.
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
  const absl::Status first = ExchangeWithAll(**transport, Transport::kMoves, kBytes);
  if (!first.ok() || write(ready, "r", 1) != 1) _exit(104);
  absl::Status background;
  std::thread other([&] { background = ExchangeUntilError(**transport, Transport::kBackground); });
  const absl::Status moves = ExchangeUntilError(**transport, Transport::kMoves);
  other.join();
  _exit(moves == background ? static_cast<int>(moves.code()) : 106);
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  int ends[2] = {-1, -1};
};

// A killed process sends no goodbye and runs no destructor: the kernel closes its sockets.
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
    ASSERT_EQ(read(port_out[rank].ends[0], &ports[rank], sizeof(int)), ssize_t{sizeof(int)});
  }
  for (Pipe& pipe : ports_in) {
    ASSERT_EQ(write(pipe.ends[1], ports, sizeof ports), ssize_t{sizeof ports});
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
  EXPECT_LT(absl::Now() - killed, kLimit);
}

INSTANTIATE_TEST_SUITE_P(Links, ProcessKillTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "SharedMemory" : "Tcp";
                         });

}  // namespace
}  // namespace cadre
