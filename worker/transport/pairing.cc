// The two state machines that connect a pair: CallingPairing (higher rank) and CalledPairing (lower
// rank).
//
//   caller  dial control -> Greeting, Answer -> Offer? -> Settled -> dial channels -> done
//   callee  accept control -------------------> Offer? -> Settled -> accept channels -> done
//
// An Offer is sent if and only if both sides enable shared memory and report the same host
// identity; both know this from Greeting and Answer, so neither waits for an Offer that is not
// sent. Equal host identities are necessary but not sufficient (containers may hide /proc/PID/fd of
// each other), so the caller tries to map the memory and falls back to TCP by sending Settled with
// connections > 0.
//
// The number of TCP connections follows from the round trip of the control connection, measured by
// the kernel before the other process was involved.
#include "worker/transport/pairing.h"

#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/transport/outgoing_call.h"
#include "worker/transport/suspects.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

// Assumed bandwidth of a link between hosts: 10 Gbit/s.
constexpr double kBytesPerSecond = 1.25e9;

absl::StatusOr<std::vector<WakeupHandle>> TakeHandles(const WakeupNames& names) {
  std::vector<WakeupHandle> handles;
  for (const std::string& name : names) {
    CADRE_ASSIGN_OR_RETURN(WakeupHandle handle, WakeupHandle::Take(name));
    handles.push_back(std::move(handle));
  }
  return handles;
}

// The lower rank of a pair.
class CalledPairing final : public Pairing {
 public:
  CalledPairing(const PairingTerms& terms, int peer) : Pairing(terms, peer) {}

  absl::Status Advance(absl::Time now) override;
  void Watch(std::vector<pollfd>& polled, absl::Time& until) const override;
  absl::Status last_failure() const override { return absl::OkStatus(); }

 private:
  absl::Status AwaitCall();
  absl::Status MakeOffer(const Greeting& greeting);
  absl::Status ReadSettled();
  void AwaitConnections();

  std::string received_;
  // The offered memory, until the peer's decision; null if none was offered.
  std::shared_ptr<SharedSegment> segment_;
  std::vector<WakeupHandle> handles_;
  std::optional<Settled> settled_;
  std::array<std::vector<Socket>, Transport::kChannels> connections_;
};

absl::Status CalledPairing::Advance(absl::Time) {
  if (!connected()) CADRE_RETURN_IF_ERROR(AwaitCall());
  if (connected() && !settled_) CADRE_RETURN_IF_ERROR(ReadSettled());
  if (settled_ && !done()) AwaitConnections();
  return absl::OkStatus();
}

void CalledPairing::Watch(std::vector<pollfd>& polled, absl::Time&) const {
  if (connected() && !settled_) polled.push_back({.fd = control().fd(), .events = POLLIN});
}

absl::Status CalledPairing::AwaitCall() {
  std::optional<TcpListener::Arrival> arrival =
      terms_.listener.TakeReceived(terms_.group, peer_, Purpose{});
  if (!arrival) return absl::OkStatus();
  links_.control = std::move(arrival->socket);
  links_.host = arrival->greeting.host;
  const bool share = terms_.shares_memory() && arrival->greeting.shares_memory() &&
                     terms_.host == arrival->greeting.host;
  return share ? MakeOffer(arrival->greeting) : absl::OkStatus();
}

absl::Status CalledPairing::MakeOffer(const Greeting& greeting) {
  absl::StatusOr<std::vector<WakeupHandle>> handles = TakeHandles(greeting.wakeups);
  absl::StatusOr<std::shared_ptr<SharedSegment>> segment = SharedSegment::Make();
  Offer offer{.wakeups = terms_.wakeups};
  if (handles.ok() && segment.ok()) {
    handles_ = *std::move(handles);
    segment_ = *std::move(segment);
    offer.description = segment_->description();
  } else {
    LOG(WARNING) << "cannot share memory with rank " << peer_ << ": "
                 << (handles.ok() ? segment.status() : handles.status());
  }
  return SendMessage(Encode(offer));
}

absl::Status CalledPairing::ReadSettled() {
  CADRE_ASSIGN_OR_RETURN(const bool all, ReadMessage(&received_));
  if (!all) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(settled_, DecodeSettled(received_));
  if (settled_->connections > 0) {
    segment_.reset();
    handles_.clear();
    return absl::OkStatus();
  }
  if (segment_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", peer_, " accepted shared memory that was not offered"));
  }
  ShareMemory(std::move(segment_), 0, std::move(handles_));
  return absl::OkStatus();
}

void CalledPairing::AwaitConnections() {
  bool all = true;
  for (uint8_t channel = 0; channel < Transport::kChannels; ++channel) {
    std::vector<Socket>& connections = connections_[channel];
    const int required = ConnectionsOf(channel, settled_->connections);
    while (std::ssize(connections) < required) {
      const uint8_t connection = connections.size();
      auto arrival = terms_.listener.TakeReceived(terms_.group, peer_, {channel, connection});
      if (!arrival) break;
      connections.push_back(std::move(arrival->socket));
    }
    all = all && std::ssize(connections) == required;
  }
  if (all) UseTcp(std::move(connections_));
}

// The higher rank of a pair.
class CallingPairing final : public Pairing {
 public:
  CallingPairing(const PairingTerms& terms, int peer, const std::string& address)
      : Pairing(terms, peer),
        call_(
            absl::StrCat("rank ", peer, " at ", address),
            [address] { return Resolve(address, false); }, MakeGreeting({}), Seed()) {}

  absl::Status Advance(absl::Time now) override;
  void Watch(std::vector<pollfd>& polled, absl::Time& until) const override;
  absl::Status last_failure() const override;

 private:
  Greeting MakeGreeting(Purpose purpose) const;
  uint64_t Seed() const;
  absl::Status CallControl(absl::Time now);
  absl::Status ReadOffer();
  // Maps the offered memory; null if that fails.
  std::shared_ptr<SharedSegment> Accept(const Offer& offer, std::vector<WakeupHandle>* handles);
  absl::Status SettleOnTcp();
  absl::Status CallConnections(absl::Time now);

  OutgoingCall call_;
  bool settled_ = false;
  std::string received_;
  // The connections of all channels, in the order of channels.
  std::vector<std::unique_ptr<OutgoingCall>> data_calls_;
  std::vector<int> data_channels_;
};

Greeting CallingPairing::MakeGreeting(Purpose purpose) const {
  Greeting greeting{
      .group = terms_.group, .purpose = purpose, .host = terms_.host, .wakeups = terms_.wakeups};
  greeting.from = terms_.rank;
  greeting.to = peer_;
  greeting.ranks = terms_.ranks;
  return greeting;
}

uint64_t CallingPairing::Seed() const { return terms_.group.generation * 1000 + terms_.rank; }

absl::Status CallingPairing::Advance(absl::Time now) {
  if (!connected()) CADRE_RETURN_IF_ERROR(CallControl(now));
  if (connected() && !settled_) CADRE_RETURN_IF_ERROR(ReadOffer());
  if (settled_ && !done()) CADRE_RETURN_IF_ERROR(CallConnections(now));
  return absl::OkStatus();
}

void CallingPairing::Watch(std::vector<pollfd>& polled, absl::Time& until) const {
  if (!connected()) call_.Watch(polled, until);
  if (connected() && !settled_) polled.push_back({.fd = control().fd(), .events = POLLIN});
  if (!done()) {
    for (const auto& call : data_calls_) call->Watch(polled, until);
  }
}

absl::Status CallingPairing::last_failure() const {
  for (const auto& call : data_calls_) {
    if (!call->welcome() && !call->last_failure().ok()) return call->last_failure();
  }
  return connected() ? absl::OkStatus() : call_.last_failure();
}

absl::Status CallingPairing::CallControl(absl::Time now) {
  CADRE_RETURN_IF_ERROR(call_.Advance(now));
  if (!call_.welcome()) return absl::OkStatus();
  links_.control = call_.Take();
  links_.host = call_.answer().host;
  const bool share =
      terms_.shares_memory() && call_.answer().shares_memory && terms_.host == call_.answer().host;
  return share ? absl::OkStatus() : SettleOnTcp();
}

absl::Status CallingPairing::ReadOffer() {
  CADRE_ASSIGN_OR_RETURN(const bool all, ReadMessage(&received_));
  if (!all) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const Offer offer, DecodeOffer(received_));
  std::vector<WakeupHandle> handles;
  std::shared_ptr<SharedSegment> segment = Accept(offer, &handles);
  if (segment == nullptr) return SettleOnTcp();
  settled_ = true;
  CADRE_RETURN_IF_ERROR(SendMessage(Encode(Settled{.connections = 0})));
  ShareMemory(std::move(segment), 1, std::move(handles));
  return absl::OkStatus();
}

std::shared_ptr<SharedSegment> CallingPairing::Accept(const Offer& offer,
                                                      std::vector<WakeupHandle>* handles) {
  if (offer.description.empty()) return nullptr;
  absl::StatusOr<std::shared_ptr<SharedSegment>> segment = SharedSegment::Open(offer.description);
  absl::StatusOr<std::vector<WakeupHandle>> taken = TakeHandles(offer.wakeups);
  if (segment.ok() && taken.ok()) {
    *handles = *std::move(taken);
    return *std::move(segment);
  }
  // Normal between containers of one host.
  LOG(INFO) << "cannot share memory with rank " << peer_ << ": "
            << (segment.ok() ? taken.status() : segment.status());
  return nullptr;
}

absl::Status CallingPairing::SettleOnTcp() {
  settled_ = true;
  const uint8_t connections =
      terms_.connections > 0 ? terms_.connections
                             : ConnectionsFor(call_.round_trip(), kBytesPerSecond, LargestWindow());
  absl::StatusOr<SocketAddress> address = AddressOfPeer(control());
  if (!address.ok()) return ClosedError(address.status());
  CADRE_RETURN_IF_ERROR(SendMessage(Encode(Settled{.connections = connections})));
  for (uint8_t channel = 0; channel < Transport::kChannels; ++channel) {
    for (uint8_t connection = 0; connection < ConnectionsOf(channel, connections); ++connection) {
      data_calls_.push_back(std::make_unique<OutgoingCall>(
          absl::StrCat("rank ", peer_), [at = *address] { return std::vector<SocketAddress>{at}; },
          MakeGreeting({channel, connection}), Seed()));
      data_channels_.push_back(channel);
    }
  }
  return absl::OkStatus();
}

absl::Status CallingPairing::CallConnections(absl::Time now) {
  bool all = true;
  for (const auto& call : data_calls_) {
    CADRE_RETURN_IF_ERROR(call->Advance(now));
    all = all && call->welcome();
  }
  if (!all) return absl::OkStatus();
  std::array<std::vector<Socket>, Transport::kChannels> connections;
  for (size_t i = 0; i < data_calls_.size(); ++i) {
    connections[data_channels_[i]].push_back(data_calls_[i]->Take());
  }
  UseTcp(std::move(connections));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> Pairing::ReadMessage(std::string* bytes) {
  absl::StatusOr<bool> complete = ReadHandshakeMessage(control(), bytes);
  if (!complete.ok()) return ClosedError(complete.status());
  return complete;
}

absl::Status Pairing::SendMessage(const std::string& bytes) {
  const absl::Status status = SendWhole(control(), bytes);
  return status.ok() ? status : ClosedError(status);
}

absl::Status Pairing::ClosedError(const absl::Status& cause) const {
  return WithSuspects(absl::AbortedError(absl::StrCat(
                          "rank ", peer_, " closed its connection while the group was connecting: ",
                          cause.message())),
                      {peer_});
}

void Pairing::ShareMemory(std::shared_ptr<SharedSegment> segment, int side,
                          std::vector<WakeupHandle> handles) {
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    links_.links[channel] = MakeSharedMemoryLink(
        segment, channel, side, std::move(handles[channel]), LinkKind::kSharedMemory);
  }
  done_ = true;
}

void Pairing::UseTcp(std::array<std::vector<Socket>, Transport::kChannels> connections) {
  for (size_t channel = 0; channel < connections.size(); ++channel) {
    links_.links[channel] = MakeTcpLink(std::move(connections[channel]));
  }
  done_ = true;
}

int ConnectionsOf(int channel, int connections) {
  // Messages on kOrder have only a few bytes, so one connection suffices.
  return channel == Transport::kOrder ? std::min(connections, 1) : connections;
}

std::unique_ptr<Pairing> MakePairing(const PairingTerms& terms, int peer,
                                     const std::string& address) {
  if (peer > terms.rank) return std::make_unique<CalledPairing>(terms, peer);
  return std::make_unique<CallingPairing>(terms, peer, address);
}

}  // namespace cadre
