// Rendezvous of one generation of a group.
//
// Every rank knows the addresses of all ranks, and the secret key of the generation, from its
// assignment. Rank i dials all lower ranks and is dialed by all higher ones, so exactly one rank of
// each pair dials, and there are no simultaneous opens. All peers advance together in one thread
// that never blocks; one poll waits for all descriptors, for the listener and for the next retry.
//
// clang-format off
//   caller  dial control: Header ------> Answer ----> dial channels: Header -> Answer ---> done
//   callee  accept control: map memory, Answer -----> accept channels: Answer -----------> done
// clang-format on
//
// A greeting precedes each header (handshake.h).
//
// The header of a control connection offers memory that the caller has made, and states the number
// of TCP connections that the caller will open if the callee does not use it. The callee maps the
// memory if both ranks enable it and have the same host identity. Equal host identities are
// necessary but not sufficient (containers may hide /proc/PID/fd of each other); if the memory
// cannot be mapped, the answer names no wakeups, and the pair uses TCP. So one answer settles the
// pair, and pairs that share memory are done with it.
//
// Assignments reach ranks at different times. A connection from a rank that is ahead waits in the
// listener until this rank expects the generation; one of an older generation is refused with a
// reason, which ends the attempt of its caller. A listener that does not exist yet is retried with
// backoff until the deadline. A peer that closes its control connection has given up on the
// generation, so the attempt ends immediately with Aborted instead of at the deadline: the
// coordinator forms a new one.
//
// Cost: with p ranks, p - 1 control connections per rank, and for each peer over TCP the
// connections of kChannels channels.
//
// Limits: names are resolved synchronously by the system. Headers and answers are authenticated by
// the key of the generation, but what follows on a connection is neither authenticated nor
// encrypted: an attacker who can modify packets on their way can take over a connection.
#include "comm/transport/connect_group.h"

#include <glog/logging.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <list>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "comm/transport/dial.h"
#include "comm/transport/host_identity.h"
#include "comm/transport/link_transport.h"
#include "comm/transport/shared_memory.h"
#include "comm/transport/suspects.h"
#include "comm/transport/tcp_link.h"
#include "comm/transport/wakeup.h"

namespace cadre {
namespace {

// How often a waiting rank checks its deadline and cancellation.
constexpr absl::Duration kTick = absl::Milliseconds(10);

// Number of connections of a channel if the pair has settled on `connections`.
int ConnectionsOf(int channel, int connections) {
  // Messages on kOrder have only a few bytes, so one connection suffices; few groups use kSends and
  // kReceives.
  return channel == Transport::kMoves || channel == Transport::kBackground ? connections : 1;
}

// `owner_may_exit`: a wakeup that does not exist belonged to a rank that has ended already.
absl::StatusOr<std::vector<WakeupHandle>> TakeHandles(const WakeupNames& names,
                                                      bool owner_may_exit) {
  std::vector<WakeupHandle> handles;
  for (const auto& name : names) {
    absl::StatusOr<WakeupHandle> handle = WakeupHandle::Take(name.view());
    if (owner_may_exit && absl::IsNotFound(handle.status())) handle = WakeupHandle();
    CADRE_RETURN_IF_ERROR(handle.status());
    handles.push_back(*std::move(handle));
  }
  return handles;
}

// One rank's attempt to connect with all others, concurrently.
class Connecting {
 public:
  // `wakeups`: of this rank; empty names if it does not share memory.
  Connecting(TcpListener& listener, const GroupIdentity& group, int rank,
             const std::vector<std::string>& addresses, const ConnectOptions& options,
             const WakeupNames& wakeups);

  absl::StatusOr<std::vector<PeerLinks>> Run();

 private:
  struct Peer {
    PeerLinks links;
    // Offered by this rank if it is the caller, until the answer.
    std::shared_ptr<SharedSegment> memory;
    // By channel and connection, as they are established; empty if the pair shares memory.
    std::array<std::vector<Socket>, Transport::kChannels> sockets;
    bool done = false;
    bool connected() const { return !links.control.empty(); }
  };

  bool shares_memory() const { return !wakeups_[0].empty(); }
  Header HeaderTo(int peer, Purpose purpose) const;
  void DialControl(int peer);
  void DialChannels(int peer, const SocketAddress& address, uint8_t connections);

  absl::Status ConnectAll();
  // Makes all progress that is possible without blocking.
  absl::Status Advance(absl::Time now);
  // A connection that this rank has dialed was accepted.
  absl::Status OnAccepted(Dial& dial);
  // A connection to this rank has arrived.
  absl::Status OnArrival(TcpListener::Arrival arrival);
  // Uses the memory that the caller offers, if possible; returns the answer.
  Answer AnswerControl(Peer& peer, const Header& header);
  bool SendAnswer(const TcpListener::Arrival& arrival, Answer answer) const;
  // `side`: see MakeSharedMemoryLink.
  void ShareMemory(Peer& peer, const std::shared_ptr<SharedSegment>& memory, int side,
                   std::vector<WakeupHandle> handles);
  void Reserve(Peer& peer, int connections);
  // Adds a connection of a channel; the last one completes the links.
  void Place(Peer& peer, Purpose purpose, Socket socket);

  // Sleeps until progress may be possible, at most kTick.
  void Wait(absl::Time now);
  // Not OK if the attempt must end.
  absl::Status Check(absl::Time now) const;
  // Adds the ranks that are not connected, and the last error.
  absl::Status NamingMissing(const absl::Status& end) const;

  TcpListener& listener_;
  const GroupIdentity& group_;
  const int rank_;
  const std::vector<std::string>& addresses_;
  const ConnectOptions& options_;
  // Begins with the wall clock, by which the deadline was chosen, and does not follow its jumps.
  const SteadyClock clock_;
  const WakeupNames wakeups_;
  const uint64_t host_ = HostIdentity();
  // By rank; the own entry is done.
  std::vector<Peer> peers_;
  // Dials in progress.
  std::list<Dial> dials_;
  // Signaled by the listener when a connection arrives.
  Socket wake_;
  // A connected rank that closed its connection; -1: none.
  int closed_ = -1;
};

Connecting::Connecting(TcpListener& listener, const GroupIdentity& group, int rank,
                       const std::vector<std::string>& addresses, const ConnectOptions& options,
                       const WakeupNames& wakeups)
    : listener_(listener),
      group_(group),
      rank_(rank),
      addresses_(addresses),
      options_(options),
      wakeups_(wakeups),
      peers_(addresses.size()) {
  peers_[rank].done = true;
  peers_[rank].links.host = host_;
}

absl::StatusOr<std::vector<PeerLinks>> Connecting::Run() {
  for (const std::string& at : addresses_) CADRE_RETURN_IF_ERROR(ParseHostPort(at).status());
  CADRE_ASSIGN_OR_RETURN(wake_, MakeWake());
  CADRE_RETURN_IF_ERROR(listener_.Expect(group_, rank_, std::ssize(peers_), &wake_));
  const absl::Cleanup forget = [this] { listener_.Forget(group_); };
  for (int peer = 0; peer < rank_; ++peer) DialControl(peer);
  CADRE_RETURN_IF_ERROR(ConnectAll());
  std::vector<PeerLinks> links;
  for (Peer& peer : peers_) links.push_back(std::move(peer.links));
  return links;
}

Header Connecting::HeaderTo(int peer, Purpose purpose) const {
  Header header{.run = TextDigest(group_.run),
                .generation = group_.generation,
                .host = host_,
                .group = group_.group,
                .protocol = group_.protocol,
                .purpose = purpose};
  header.ranks = peers_.size();
  header.from = rank_;
  header.to = peer;
  header.connections = options_.connections;
  return header;
}

void Connecting::DialControl(int peer) {
  Header header = HeaderTo(peer, {});
  if (shares_memory()) {
    absl::StatusOr<std::shared_ptr<SharedSegment>> memory = SharedSegment::Make();
    if (memory.ok()) {
      header.wakeups = wakeups_;
      header.memory = decltype(header.memory)((*memory)->description());
      peers_[peer].memory = *std::move(memory);
    } else {
      LOG(WARNING) << "cannot share memory with rank " << peer << ": " << memory.status();
    }
  }
  const std::string& address = addresses_[peer];
  dials_.emplace_back(
      absl::StrCat("rank ", peer, " at ", address), [&address] { return Resolve(address, false); },
      header, group_.key);
}

void Connecting::DialChannels(int peer, const SocketAddress& address, uint8_t connections) {
  for (uint8_t channel = 0; channel < Transport::kChannels; ++channel) {
    for (uint8_t connection = 0; connection < ConnectionsOf(channel, connections); ++connection) {
      Header header = HeaderTo(peer, {channel, connection});
      header.connections = connections;
      dials_.emplace_back(
          absl::StrCat("rank ", peer), [address] { return std::vector<SocketAddress>{address}; },
          header, group_.key);
    }
  }
}

absl::Status Connecting::ConnectAll() {
  while (true) {
    const absl::Time now = clock_.Now();
    // Evaluated before the peers advance: a peer that is done may have closed its connection after
    // its last answer, which Advance then reads.
    const absl::Status end = Check(now);
    CADRE_RETURN_IF_ERROR(Advance(now));
    if (std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.done; })) {
      return absl::OkStatus();
    }
    if (!end.ok()) return NamingMissing(end);
    Wait(now);
  }
}

absl::Status Connecting::Advance(absl::Time now) {
  for (TcpListener::Arrival& arrival : listener_.TakeArrivals(group_)) {
    CADRE_RETURN_IF_ERROR(OnArrival(std::move(arrival)));
  }
  for (auto dial = dials_.begin(); dial != dials_.end();) {
    CADRE_RETURN_IF_ERROR(dial->Advance(now));
    if (dial->accepted()) CADRE_RETURN_IF_ERROR(OnAccepted(*dial));
    dial = dial->accepted() ? dials_.erase(dial) : std::next(dial);
  }
  return absl::OkStatus();
}

absl::Status Connecting::OnAccepted(Dial& dial) {
  const Header& header = dial.header();
  const int rank = header.to;
  Peer& peer = peers_[rank];
  if (header.purpose != Purpose{}) {
    Place(peer, header.purpose, dial.Take());
    return absl::OkStatus();
  }
  peer.links.control = dial.Take();
  peer.links.host = dial.answer().host;
  const std::shared_ptr<SharedSegment> memory = std::move(peer.memory);
  if (memory != nullptr && !dial.answer().wakeups[0].empty()) {
    CADRE_ASSIGN_OR_RETURN(auto handles, TakeHandles(dial.answer().wakeups, true));
    ShareMemory(peer, memory, 1, std::move(handles));
    return absl::OkStatus();
  }
  absl::StatusOr<SocketAddress> address = AddressOfPeer(peer.links.control);
  if (!address.ok()) {
    closed_ = rank;
    return absl::OkStatus();
  }
  Reserve(peer, header.connections);
  DialChannels(rank, *address, header.connections);
  return absl::OkStatus();
}

absl::Status Connecting::OnArrival(TcpListener::Arrival arrival) {
  const Header& header = arrival.header;
  Purpose purpose = header.purpose;
  Peer& peer = peers_[header.from];
  if (purpose != Purpose{}) {
    // The caller names its own channel.
    purpose.channel = Transport::PeerChannel(purpose.channel);
    const bool missing = peer.connected() && !peer.done &&
                         purpose.connection < std::ssize(peer.sockets[purpose.channel]) &&
                         peer.sockets[purpose.channel][purpose.connection].empty();
    if (missing && SendAnswer(arrival, {})) Place(peer, purpose, std::move(arrival.socket));
    return absl::OkStatus();
  }
  if (peer.connected()) {
    Answer answer{.code = Answer::Code::kWrongRank};
    answer.reason =
        decltype(answer.reason)(absl::StrCat("rank ", header.from, " is connected already"));
    SendAnswer(arrival, answer);
    return absl::OkStatus();
  }
  if (!SendAnswer(arrival, AnswerControl(peer, header))) {
    // The caller connects again.
    peer = Peer();
    return absl::OkStatus();
  }
  peer.links.control = std::move(arrival.socket);
  peer.links.host = header.host;
  if (!peer.done) Reserve(peer, header.connections);
  return absl::OkStatus();
}

Answer Connecting::AnswerControl(Peer& peer, const Header& header) {
  Answer answer{.host = host_};
  if (!shares_memory() || header.memory.empty() || header.host != host_) return answer;
  absl::StatusOr<std::shared_ptr<SharedSegment>> memory = SharedSegment::Open(header.memory.view());
  absl::StatusOr<std::vector<WakeupHandle>> handles = TakeHandles(header.wakeups, false);
  if (memory.ok() && handles.ok()) {
    ShareMemory(peer, *memory, 0, *std::move(handles));
    answer.wakeups = wakeups_;
  } else {
    // Normal between containers of one host.
    LOG(INFO) << "cannot share memory with rank " << header.from << ": "
              << (memory.ok() ? handles.status() : memory.status());
  }
  return answer;
}

bool Connecting::SendAnswer(const TcpListener::Arrival& arrival, Answer answer) const {
  Sign(group_.key, answer, arrival.header.tag);
  return SendWhole(arrival.socket, BytesOf(answer)).ok();
}

void Connecting::ShareMemory(Peer& peer, const std::shared_ptr<SharedSegment>& memory, int side,
                             std::vector<WakeupHandle> handles) {
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    const int of_peer = Transport::PeerChannel(channel);
    peer.links.links[channel] =
        MakeSharedMemoryLink(memory, side == 0 ? channel : of_peer, side,
                             std::move(handles[of_peer]), LinkKind::kSharedMemory);
  }
  peer.done = true;
}

void Connecting::Reserve(Peer& peer, int connections) {
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    peer.sockets[channel].resize(ConnectionsOf(channel, connections));
  }
}

void Connecting::Place(Peer& peer, Purpose purpose, Socket socket) {
  peer.sockets[purpose.channel][purpose.connection] = std::move(socket);
  for (const auto& sockets : peer.sockets) {
    if (std::any_of(sockets.begin(), sockets.end(), [](auto& one) { return one.empty(); })) return;
  }
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    peer.links.links[channel] = MakeTcpLink(std::move(peer.sockets[channel]));
  }
  peer.done = true;
}

void Connecting::Wait(absl::Time now) {
  std::vector<pollfd> polled;
  std::vector<int> connected;
  for (int rank = 0; rank < std::ssize(peers_); ++rank) {
    if (!peers_[rank].connected()) continue;
    polled.push_back({.fd = peers_[rank].links.control.fd(), .events = POLLRDHUP});
    connected.push_back(rank);
  }
  polled.push_back({.fd = wake_.fd(), .events = POLLIN});
  absl::Time until = now + kTick;
  for (const Dial& dial : dials_) dial.Watch(polled, until);
  // Rounded up, so that a retry is due when the poll returns.
  const absl::Duration wait = absl::Ceil(until - clock_.Now(), absl::Milliseconds(1));
  const int64_t milliseconds = std::max<int64_t>(absl::ToInt64Milliseconds(wait), 0);
  if (poll(polled.data(), polled.size(), milliseconds) <= 0) return;
  ClearWake(wake_);
  for (size_t i = 0; i < connected.size(); ++i) {
    if (polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) closed_ = connected[i];
  }
}

absl::Status Connecting::Check(absl::Time now) const {
  if (options_.cancelled && options_.cancelled()) {
    return absl::CancelledError("connecting the group was cancelled");
  }
  if (closed_ >= 0) {
    return absl::AbortedError(
        absl::StrCat("rank ", closed_, " closed its connection while the group was connecting"));
  }
  if (now < options_.deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("connecting rank ", rank_, " with its group took too long"));
}

absl::Status Connecting::NamingMissing(const absl::Status& end) const {
  std::vector<std::string> missing, incomplete;
  std::vector<int> suspects;
  for (int rank = 0; rank < std::ssize(peers_); ++rank) {
    if (peers_[rank].done) continue;
    suspects.push_back(rank);
    (peers_[rank].connected() ? incomplete : missing)
        .push_back(absl::StrCat(rank, " at ", addresses_[rank]));
  }
  if (closed_ >= 0) suspects = {closed_};
  std::string text =
      missing.empty() ? absl::StrCat("incomplete links with rank ", absl::StrJoin(incomplete, ", "))
                      : absl::StrCat("no connection with rank ", absl::StrJoin(missing, ", "));
  absl::Status failure;
  for (const Dial& dial : dials_) {
    const bool named = peers_[dial.header().to].connected() == missing.empty();
    if (named && !dial.last_failure().ok()) failure = dial.last_failure();
  }
  if (!failure.ok()) absl::StrAppend(&text, " (", failure.message(), ")");
  return WithSuspects(absl::Status(end.code(), absl::StrCat(end.message(), ": ", text)), suspects);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectGroup(TcpListener& listener,
                                                        const GroupIdentity& group, int rank,
                                                        const std::vector<std::string>& peers,
                                                        const ConnectOptions& options) {
  CHECK(rank >= 0 && rank < std::ssize(peers)) << rank << " of " << peers.size();
  CHECK(options.connections >= 0 && options.connections <= kMaxConnections) << options.connections;
  CADRE_ASSIGN_OR_RETURN(Wakeups wakeups, MakeWakeups());
  WakeupNames names;
  if (options.shared_memory) {
    std::transform(wakeups.begin(), wakeups.end(), names.begin(),
                   [](const auto& wakeup) { return FixedText<64>(wakeup->name()); });
  }
  Connecting connecting(listener, group, rank, peers, options, names);
  CADRE_ASSIGN_OR_RETURN(std::vector<PeerLinks> links, connecting.Run());
  return MakeLinkTransport(rank, std::move(links), std::move(wakeups), options.timeout);
}

}  // namespace cadre
