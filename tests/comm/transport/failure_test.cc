// Loss of a rank during calls: all other ranks fail immediately, whichever peer they wait for, on
// every channel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "comm/transport/suspects.h"
#include "tests/comm/transport/messages.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

// The timeout of the transports is much longer than the tests' timeout, so it cannot end a wait.
constexpr absl::Duration kTimeout = absl::Minutes(5);
// Limit for "immediately": a scheduling delay on a loaded machine.
constexpr absl::Duration kLimit = absl::Seconds(2);
// Limit for the death of a process, which is detected in about a millisecond on an idle machine.
constexpr absl::Duration kKillLimit = absl::Milliseconds(500);

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
      EXPECT_EQ(SuspectsOf(statuses[rank]), std::vector<int>({victim})) << statuses[rank];
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

// Connects rank `rank` of three processes, which listen on `ports`.
absl::StatusOr<std::unique_ptr<Transport>> Connect(TcpListener& listener, int rank,
                                                   const int (&ports)[3], bool shared_memory) {
  std::vector<std::string> peers;
  for (const int port : ports) peers.push_back("127.0.0.1:" + std::to_string(port));
  return ConnectGroup(listener, {.run = "fork", .generation = 1}, rank, peers,
                      {.deadline = absl::Now() + absl::Seconds(30),
                       .timeout = kTimeout,
                       .shared_memory = shared_memory});
}

LinkKind KindOf(bool shared_memory) {
  return shared_memory ? LinkKind::kSharedMemory : LinkKind::kTcp;
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  int ends[2] = {-1, -1};
};

// A child process: joins as `rank`, writes a byte to `ready` after the first call, makes calls on
// two channels until both have failed, and exits with the code of the error.
[[noreturn]] void RunChild(int rank, bool shared_memory, const Pipe& ports_in, const Pipe& port_out,
                           const Pipe& ready) {
  auto listener = TcpListener::Listen({});
  if (!listener.ok()) _exit(100);
  const int port = (*listener)->port();
  if (write(port_out.ends[1], &port, sizeof port) != sizeof port) _exit(101);
  int ports[3];
  if (read(ports_in.ends[0], ports, sizeof ports) != sizeof ports) _exit(102);
  auto transport = Connect(**listener, rank, ports, shared_memory);
  if (!transport.ok()) _exit(103);
  if ((*transport)->link(0) != KindOf(shared_memory)) _exit(106);
  const absl::Status first = ExchangeWithAll(**transport, Transport::kMoves, kBytes);
  if (!first.ok() || write(ready.ends[1], "r", 1) != 1) _exit(104);
  absl::Status background;
  std::thread other([&] { background = ExchangeUntilError(**transport, Transport::kBackground); });
  const absl::Status moves = ExchangeUntilError(**transport, Transport::kMoves);
  other.join();
  _exit(moves == background ? static_cast<int>(moves.code()) : 105);
}

// A killed process sends no goodbye and runs no destructor: the kernel closes its sockets. This
// process is rank 0. Rank 1 is killed while ranks 0 and 2 exchange data on two channels and rank 0
// waits for rank 1 on the others.
class ProcessKillTest : public ::testing::TestWithParam<bool> {};

TEST_P(ProcessKillTest, FailsAllChannelsImmediately) {
  const bool shared_memory = GetParam();
  Pipe port_out[3];
  Pipe ports_in[3];
  Pipe ready;
  pid_t children[3];
  for (const int rank : {1, 2}) {
    children[rank] = fork();
    ASSERT_GE(children[rank], 0);
    if (children[rank] == 0) {
      RunChild(rank, shared_memory, ports_in[rank], port_out[rank], ready);
    }
  }
  auto listener = TcpListener::Listen({});
  ASSERT_TRUE(listener.ok()) << listener.status();
  int ports[3] = {(*listener)->port()};
  for (const int rank : {1, 2}) {
    ASSERT_EQ(read(port_out[rank].ends[0], &ports[rank], sizeof(int)), ssize_t{sizeof(int)});
  }
  for (const int rank : {1, 2}) {
    ASSERT_EQ(write(ports_in[rank].ends[1], ports, sizeof ports), ssize_t{sizeof ports});
  }
  auto transport = Connect(**listener, 0, ports, shared_memory);
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->link(1), KindOf(shared_memory));
  ASSERT_TRUE(ExchangeWithAll(**transport, Transport::kMoves, kBytes).ok());
  absl::Status statuses[Transport::kChannels];
  absl::Time failed[Transport::kChannels];
  std::vector<std::thread> channels;
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    channels.emplace_back([&, channel] {
      Bytes received(8);
      statuses[channel] = channel == Transport::kOrder || channel == Transport::kReceives
                              ? Receive(**transport, 1, 0, received, channel)
                              : ExchangeUntilError(**transport, channel);
      failed[channel] = absl::Now();
    });
  }
  char byte = 0;
  for (int child = 0; child < 2; ++child) ASSERT_EQ(read(ready.ends[0], &byte, 1), 1);
  const absl::Time killed = absl::Now();
  ASSERT_EQ(kill(children[1], SIGKILL), 0);
  for (std::thread& channel : channels) channel.join();
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    EXPECT_TRUE(absl::IsUnavailable(statuses[channel])) << statuses[channel];
    EXPECT_THAT(std::string(statuses[channel].message()), ::testing::HasSubstr("rank 1 is lost"));
    EXPECT_LT(failed[channel] - killed, kKillLimit) << "channel " << channel;
    EXPECT_EQ(SuspectsOf(statuses[channel]), std::vector<int>({1}));
  }
  int status = 0;
  ASSERT_EQ(waitpid(children[2], &status, 0), children[2]);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(absl::StatusCode::kUnavailable));
  ASSERT_EQ(waitpid(children[1], &status, 0), children[1]);
  EXPECT_TRUE(WIFSIGNALED(status));
}

INSTANTIATE_TEST_SUITE_P(Links, ProcessKillTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "SharedMemory" : "Tcp";
                         });

}  // namespace
}  // namespace cadre
