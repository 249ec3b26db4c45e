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
#include "worker/transport/bell.h"
#include "worker/transport/host_identity.h"
#include "worker/transport/link_transport.h"
#include "worker/transport/pairing.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

// How often a waiting rank looks at its deadline and its cancellation.
constexpr absl::Duration kTick = absl::Milliseconds(10);

using Bells = std::array<std::unique_ptr<Bell>, Transport::kChannels>;

absl::StatusOr<Bells> MakeBells() {
  Bells bells;
  for (std::unique_ptr<Bell>& bell : bells) {
    CADRE_ASSIGN_OR_RETURN(bell, Bell::Make());
  }
  return bells;
}

// One rank's attempt to connect with all others, with all of them at once.
class Connecting {
 public:
  Connecting(PairingTerms terms, const std::vector<std::string>& peers,
             const ConnectOptions& options);

  absl::StatusOr<std::vector<PeerLinks>> Run();

 private:
  absl::Status ConnectAll();
  // Sleeps until one of the pairings may go on, at most a tick.
  void Wait(absl::Time now);
  // Whether the attempt has to end.
  absl::Status Check(absl::Time now) const;
  // Which ranks are not connected, and why not.
  std::string Missing() const;

  const PairingTerms terms_;
  const std::vector<std::string>& peers_;
  const ConnectOptions& options_;
  std::vector<std::unique_ptr<Pairing>> pairings_;
  // Written by the listener when somebody calls.
  Socket wake_;
  // Of one that was connected; -1: none.
  int hung_up_ = -1;
};

Connecting::Connecting(PairingTerms terms, const std::vector<std::string>& peers,
                       const ConnectOptions& options)
    : terms_(std::move(terms)), peers_(peers), options_(options) {
  for (int peer = 0; peer < terms_.ranks; ++peer) {
    if (peer == terms_.rank) continue;
    pairings_.push_back(MakePairing(terms_, peer, peers_[static_cast<size_t>(peer)]));
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
  links[static_cast<size_t>(terms_.rank)].host = terms_.host;
  for (const auto& pairing : pairings_)
    links[static_cast<size_t>(pairing->peer())] = pairing->Take();
  return links;
}

absl::Status Connecting::ConnectAll() {
  while (true) {
    const absl::Time now = absl::Now();
    // Looked at before the pairings go on: whoever hangs up after the last word has said it.
    const absl::Status end = Check(now);
    bool done = true;
    for (const auto& pairing : pairings_) {
      CADRE_RETURN_IF_ERROR(pairing->Advance(now));
      done = done && pairing->done();
    }
    if (done) return absl::OkStatus();
    if (!end.ok()) return absl::Status(end.code(), absl::StrCat(end.message(), ": ", Missing()));
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
  // Rounded up, so that a pause is over when the poll is.
  const absl::Duration wait = absl::Ceil(until - absl::Now(), absl::Milliseconds(1));
  const int64_t milliseconds = std::max<int64_t>(absl::ToInt64Milliseconds(wait), 0);
  if (poll(polled.data(), polled.size(), static_cast<int>(milliseconds)) <= 0) return;
  ClearWake(wake_);
  for (size_t i = 0; i < connected.size(); ++i) {
    if (polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) hung_up_ = connected[i];
  }
}

absl::Status Connecting::Check(absl::Time now) const {
  if (options_.cancelled && options_.cancelled()) {
    return absl::CancelledError("connecting the group was cancelled");
  }
  if (hung_up_ >= 0) {
    // Not Unavailable for the caller to try again: this generation's group will not be.
    return absl::AbortedError(
        absl::StrCat("rank ", hung_up_, " hung up while the group was connecting"));
  }
  if (now < options_.deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("connecting rank ", terms_.rank, " with its group took too long"));
}

std::string Connecting::Missing() const {
  std::vector<std::string> missing, unsettled;
  absl::Status failure;
  for (const auto& pairing : pairings_) {
    if (pairing->done()) continue;
    (pairing->connected() ? unsettled : missing)
        .push_back(
            absl::StrCat(pairing->peer(), " at ", peers_[static_cast<size_t>(pairing->peer())]));
    if (!pairing->last_failure().ok()) failure = pairing->last_failure();
  }
  std::string text = missing.empty()
                         ? absl::StrCat("not all links with rank ", absl::StrJoin(unsettled, ", "))
                         : absl::StrCat("no connection with rank ", absl::StrJoin(missing, ", "));
  if (!failure.ok()) absl::StrAppend(&text, " (", failure.message(), ")");
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectGroup(TcpListener& listener,
                                                        const GroupIdentity& group, int rank,
                                                        const std::vector<std::string>& peers,
                                                        const ConnectOptions& options) {
  CHECK(rank >= 0 && rank < static_cast<int>(peers.size())) << rank << " of " << peers.size();
  CHECK(options.lanes >= 0 && options.lanes <= kMostLanes) << options.lanes;
  CADRE_ASSIGN_OR_RETURN(Bells bells, MakeBells());
  PairingTerms terms{.listener = listener,
                     .group = group,
                     .rank = rank,
                     .ranks = static_cast<int>(peers.size()),
                     .host = HostIdentity(),
                     .lanes = options.lanes};
  if (options.shared_memory) {
    for (size_t i = 0; i < bells.size(); ++i) terms.bells[i] = bells[i]->name();
  }
  CADRE_ASSIGN_OR_RETURN(std::vector<PeerLinks> links,
                         Connecting(std::move(terms), peers, options).Run());
  return MakeLinkTransport(rank, std::move(links), std::move(bells), options.timeout);
}

}  // namespace cadre
