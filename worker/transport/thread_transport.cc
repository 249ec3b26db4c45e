#include "worker/transport/thread_transport.h"

#include <glog/logging.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "worker/transport/link_transport.h"
#include "worker/transport/shared_memory.h"

namespace cadre {
namespace {

// All ranks are on one host, whatever its number.
constexpr uint64_t kHost = 1;

// What one rank brings.
struct Member {
  std::array<std::unique_ptr<Wakeup>, Transport::kChannels> wakeups;
  // Of its wakeups, for the others.
  std::vector<WakeupHandle> handles;
  std::vector<PeerLinks> peers;
};

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  CHECK(value.ok()) << value.status();
  return *std::move(value);
}

Member MakeMember(int ranks) {
  Member member;
  for (auto& wakeup : member.wakeups) {
    wakeup = OrDie(Wakeup::Make());
    member.handles.push_back(OrDie(WakeupHandle::Take(wakeup->name())));
  }
  member.peers.resize(ranks);
  for (PeerLinks& peer : member.peers) peer.host = kHost;
  return member;
}

void Join(std::vector<Member>& members, size_t a, size_t b) {
  int sockets[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0)
      << std::strerror(errno);
  const auto segment = OrDie(SharedSegment::MakeForThreads());
  const std::array<size_t, 2> ends = {a, b};
  for (const int side : {0, 1}) {
    Member& mine = members[ends[side]];
    const Member& other = members[ends[1 - side]];
    PeerLinks& peer = mine.peers[ends[1 - side]];
    peer.control = Socket(sockets[side]);
    for (int channel = 0; channel < Transport::kChannels; ++channel) {
      const auto i = static_cast<size_t>(channel);
      peer.links[i] =
          MakeSharedMemoryLink(segment, channel, side, other.handles[i], LinkKind::kThreads);
    }
  }
}

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int ranks, absl::Duration timeout) {
  CHECK_GE(ranks, 1);
  std::vector<Member> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(MakeMember(ranks));
  for (size_t a = 0; a < members.size(); ++a) {
    for (size_t b = a + 1; b < members.size(); ++b) Join(members, a, b);
  }
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    Member& member = members[rank];
    transports.push_back(OrDie(
        MakeLinkTransport(rank, std::move(member.peers), std::move(member.wakeups), timeout)));
  }
  return transports;
}

}  // namespace cadre
