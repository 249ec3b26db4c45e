#include "comm/transport/thread_transport.h"

#include <glog/logging.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/transport/link_transport.h"
#include "comm/transport/shared_memory.h"

namespace cadre {
namespace {

struct ThreadRank {
  Wakeups wakeups;
  // Handles of its own wakeups, for its peers.
  std::vector<WakeupHandle> handles;
  std::vector<PeerLinks> peers;
};

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  CHECK(value.ok()) << value.status();
  return *std::move(value);
}

void Connect(std::vector<ThreadRank>& ranks, int a, int b) {
  int sockets[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0)
      << std::strerror(errno);
  const auto segment = OrDie(SharedSegment::MakeForThreads());
  const std::array<int, 2> ends = {a, b};
  for (const int side : {0, 1}) {
    const int other = ends[1 - side];
    PeerLinks& peer = ranks[ends[side]].peers[other];
    peer.control = Socket(sockets[side]);
    for (int channel = 0; channel < Transport::kChannels; ++channel) {
      const int of_other = Transport::PeerChannel(channel);
      peer.links[channel] =
          MakeSharedMemoryLink(segment, side == 0 ? channel : of_other, side,
                               ranks[other].handles[of_other], LinkKind::kThreads);
    }
  }
}

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int ranks, absl::Duration timeout) {
  CHECK_GE(ranks, 1);
  std::vector<ThreadRank> group(ranks);
  for (ThreadRank& rank : group) {
    rank.wakeups = OrDie(MakeWakeups());
    for (const auto& wakeup : rank.wakeups) {
      rank.handles.push_back(OrDie(WakeupHandle::Take(wakeup->name())));
    }
    rank.peers.resize(ranks);
  }
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) Connect(group, a, b);
  }
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    ThreadRank& own = group[rank];
    transports.push_back(
        OrDie(MakeLinkTransport(rank, std::move(own.peers), std::move(own.wakeups), timeout)));
  }
  return transports;
}

}  // namespace cadre
