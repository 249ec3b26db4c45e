// Rendezvous of one generation of a group.
//
// Every rank knows the addresses of all ranks from its assignment. Rank i dials all lower ranks and
// is dialed by all higher ones, so exactly one rank of each pair dials, and there are no
// simultaneous opens. All pairings advance together in one thread: each is a state machine that
// never blocks (pairing.h), and one poll waits for all their descriptors, for the listener and for
// the next retry.
//
// Assignments reach ranks at different times. A connection from a rank that is ahead is parked by
// the listener until this rank expects the generation; one of an older generation is refused with a
// reason, which ends the attempt of its caller. A listener that does not exist yet is retried with
// backoff until the deadline. A peer that closes its control connection has given up on the
// generation, so the attempt ends immediately with Aborted instead of at the deadline: the
// coordinator forms a new one.
//
// Cost: with p ranks, p - 1 control connections per rank, and for each peer over TCP the
// connections of kChannels channels.
//
// Limits: names are resolved synchronously by the system. Connections are not encrypted; ranks
// trust their network, and the greeting protects against accidents, not attackers.
#include "worker/transport/connect_group.h"

#include <glog/logging.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "worker/transport/host_identity.h"
#include "worker/transport/link_transport.h"
#include "worker/transport/pairing.h"
#include "worker/transport/suspects.h"
#include "worker/transport/tcp_link.h"
#include "worker/transport/wakeup.h"

namespace cadre {
namespace {

// How often a waiting rank checks its deadline and cancellation.
constexpr absl::Duration kTick = absl::Milliseconds(10);

// One rank's attempt to connect with all others, concurrently.
class Connecting {
 public:
  Connecting(PairingTerms terms, const std::vector<std::string>& peers,
             const ConnectOptions& options);

  absl::StatusOr<std::vector<PeerLinks>> Run();

 private:
  absl::Status ConnectAll();
  // Sleeps until a pairing may make progress, at most kTick.
  void Wait(absl::Time now);
  // Not OK if the attempt must end.
  absl::Status Check(absl::Time now) const;
  // Adds the ranks that are not connected, and the last error.
  absl::Status NamingMissing(const absl::Status& end) const;

  const PairingTerms terms_;
  const std::vector<std::string>& peers_;
  const ConnectOptions& options_;
  std::vector<std::unique_ptr<Pairing>> pairings_;
  // Signaled by the listener when a connection arrives.
  Socket wake_;
  // A connected rank that closed its connection; -1: none.
  int closed_ = -1;
};

Connecting::Connecting(PairingTerms terms, const std::vector<std::string>& peers,
                       const ConnectOptions& options)
    : terms_(std::move(terms)), peers_(peers), options_(options) {
  for (int peer = 0; peer < terms_.ranks; ++peer) {
    if (peer == terms_.rank) continue;
    pairings_.push_back(MakePairing(terms_, peer, peers_[peer]));
  }
}

absl::StatusOr<std::vector<PeerLinks>> Connecting::Run() {
  for (const std::string& peer : peers_) CADRE_RETURN_IF_ERROR(ParseHostPort(peer).status());
  CADRE_ASSIGN_OR_RETURN(wake_, MakeWake());
  CADRE_RETURN_IF_ERROR(terms_.listener.Expect({.group = terms_.group,
                                                .rank = terms_.rank,
                                                .ranks = terms_.ranks,
                                                .host = terms_.host,
                                                .shares_memory = terms_.shares_memory(),
                                                .wake = &wake_}));
  const absl::Cleanup forget = [this] { terms_.listener.Forget(terms_.group); };
  CADRE_RETURN_IF_ERROR(ConnectAll());
  std::vector<PeerLinks> links(peers_.size());
  links[terms_.rank].host = terms_.host;
  for (const auto& pairing : pairings_) links[pairing->peer()] = pairing->Take();
  return links;
}

absl::Status Connecting::ConnectAll() {
  while (true) {
    const absl::Time now = absl::Now();
    // Evaluated before the pairings advance: a peer that is done may have closed its connection
    // after its last message, which Advance then reads.
    const absl::Status end = Check(now);
    bool done = true;
    for (const auto& pairing : pairings_) {
      CADRE_RETURN_IF_ERROR(pairing->Advance(now));
      done = done && pairing->done();
    }
    if (done) return absl::OkStatus();
    if (!end.ok()) return NamingMissing(end);
    Wait(now);
  }
}

void Connecting::Wait(absl::Time now) {
  std::vector<pollfd> polled;
  std::vector<int> connected;
  for (const auto& pairing : pairings_) {
    if (!pairing->connected()) continue;
    polled.push_back({.fd = pairing->control().fd(), .events = POLLRDHUP});
    connected.push_back(pairing->peer());
  }
  polled.push_back({.fd = wake_.fd(), .events = POLLIN});
  absl::Time until = now + kTick;
  for (const auto& pairing : pairings_) pairing->Watch(polled, until);
  // Rounded up, so that a retry is due when the poll returns.
  const absl::Duration wait = absl::Ceil(until - absl::Now(), absl::Milliseconds(1));
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
      absl::StrCat("connecting rank ", terms_.rank, " with its group took too long"));
}

absl::Status Connecting::NamingMissing(const absl::Status& end) const {
  std::vector<std::string> missing, unsettled;
  std::vector<int> peers;
  absl::Status failure;
  for (const auto& pairing : pairings_) {
    if (pairing->done()) continue;
    peers.push_back(pairing->peer());
    (pairing->connected() ? unsettled : missing)
        .push_back(absl::StrCat(pairing->peer(), " at ", peers_[pairing->peer()]));
    if (!pairing->last_failure().ok()) failure = pairing->last_failure();
  }
  std::string text =
      missing.empty() ? absl::StrCat("incomplete links with rank ", absl::StrJoin(unsettled, ", "))
                      : absl::StrCat("no connection with rank ", absl::StrJoin(missing, ", "));
  if (!failure.ok()) absl::StrAppend(&text, " (", failure.message(), ")");
  return WithSuspects(absl::Status(end.code(), absl::StrCat(end.message(), ": ", text)),
                      closed_ >= 0 ? std::vector<int>{closed_} : peers);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectGroup(TcpListener& listener,
                                                        const GroupIdentity& group, int rank,
                                                        const std::vector<std::string>& peers,
                                                        const ConnectOptions& options) {
  CHECK(rank >= 0 && rank < std::ssize(peers)) << rank << " of " << peers.size();
  CHECK(options.connections >= 0 && options.connections <= kMaxConnections) << options.connections;
  CADRE_ASSIGN_OR_RETURN(Wakeups wakeups, MakeWakeups());
  PairingTerms terms{.listener = listener,
                     .group = group,
                     .rank = rank,
                     .host = HostIdentity(),
                     .connections = options.connections};
  terms.ranks = peers.size();
  if (options.shared_memory) {
    for (size_t i = 0; i < wakeups.size(); ++i) terms.wakeups[i] = wakeups[i]->name();
  }
  CADRE_ASSIGN_OR_RETURN(std::vector<PeerLinks> links,
                         Connecting(std::move(terms), peers, options).Run());
  return MakeLinkTransport(rank, std::move(links), std::move(wakeups), options.timeout);
}

}  // namespace cadre
