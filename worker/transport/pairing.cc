#include "worker/transport/pairing.h"

#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/transport/outgoing_call.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

// What a link between hosts is taken to carry: 10 Gbit/s.
constexpr double kBytesPerSecond = 1.25e9;

absl::StatusOr<std::vector<BellRope>> TakeRopes(const BellNames& names) {
  std::vector<BellRope> ropes;
  for (const std::string& name : names) {
    CADRE_ASSIGN_OR_RETURN(BellRope rope, BellRope::Take(name));
    ropes.push_back(std::move(rope));
  }
  return ropes;
}

// The side of the lower rank.
class CalledPairing final : public Pairing {
 public:
  CalledPairing(const PairingTerms& terms, int peer) : Pairing(terms, peer) {}

  absl::Status Advance(absl::Time now) override;
  void Watch(std::vector<pollfd>& polled, absl::Time& until) const override;
  absl::Status last_failure() const override { return absl::OkStatus(); }

 private:
  absl::Status AwaitCall();
  absl::Status MakeOffer(const Greeting& greeting);
  absl::Status HearSettled();
  void AwaitLanes();

  std::string received_;
  // What was offered, until it is settled; null: nothing.
  std::shared_ptr<SharedSegment> segment_;
  std::vector<BellRope> ropes_;
  std::optional<Settled> settled_;
  std::array<std::vector<Socket>, Transport::kChannels> lanes_;
};

absl::Status CalledPairing::Advance(absl::Time) {
  if (!connected()) CADRE_RETURN_IF_ERROR(AwaitCall());
  if (connected() && !settled_) CADRE_RETURN_IF_ERROR(HearSettled());
  if (settled_ && !done()) AwaitLanes();
  return absl::OkStatus();
}

void CalledPairing::Watch(std::vector<pollfd>& polled, absl::Time&) const {
  if (connected() && !settled_) polled.push_back({.fd = control().fd(), .events = POLLIN});
}

absl::Status CalledPairing::AwaitCall() {
  std::optional<TcpListener::Arrival> arrival =
      terms_.listener.TakeArrived(terms_.group, peer_, Purpose{});
  if (!arrival) return absl::OkStatus();
  links_.control = std::move(arrival->socket);
  links_.host = arrival->greeting.host;
  const bool share = terms_.shares_memory() && arrival->greeting.shares_memory() &&
                     terms_.host == arrival->greeting.host;
  return share ? MakeOffer(arrival->greeting) : absl::OkStatus();
}

absl::Status CalledPairing::MakeOffer(const Greeting& greeting) {
  absl::StatusOr<std::vector<BellRope>> ropes = TakeRopes(greeting.bells);
  absl::StatusOr<std::shared_ptr<SharedSegment>> segment = SharedSegment::Make();
  Offer offer{.bells = terms_.bells};
  if (ropes.ok() && segment.ok()) {
    ropes_ = *std::move(ropes);
    segment_ = *std::move(segment);
    offer.description = segment_->description();
  } else {
    LOG(WARNING) << "no shared memory with rank " << peer_ << ": "
                 << (ropes.ok() ? segment.status() : ropes.status());
  }
  return Say(Encode(offer));
}

absl::Status CalledPairing::HearSettled() {
  CADRE_ASSIGN_OR_RETURN(const bool all, Hear(&received_));
  if (!all) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(settled_, DecodeSettled(received_));
  if (settled_->lanes > 0) {
    segment_.reset();
    ropes_.clear();
    return absl::OkStatus();
  }
  if (segment_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", peer_, " takes shared memory that was not offered"));
  }
  ShareMemory(std::move(segment_), 0, std::move(ropes_));
  return absl::OkStatus();
}

void CalledPairing::AwaitLanes() {
  bool all = true;
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    std::vector<Socket>& lanes = lanes_[static_cast<size_t>(channel)];
    const int wanted = LanesOf(channel, settled_->lanes);
    while (static_cast<int>(lanes.size()) < wanted) {
      const Purpose purpose{.channel = static_cast<uint8_t>(channel),
                            .lane = static_cast<uint8_t>(lanes.size())};
      auto arrival = terms_.listener.TakeArrived(terms_.group, peer_, purpose);
      if (!arrival) break;
      lanes.push_back(std::move(arrival->socket));
    }
    all = all && static_cast<int>(lanes.size()) == wanted;
  }
  if (all) UseTcp(std::move(lanes_));
}

// The side of the higher rank.
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
  absl::Status HearOffer();
  // Empty if the memory cannot be shared after all.
  std::shared_ptr<SharedSegment> Accept(const Offer& offer, std::vector<BellRope>* ropes);
  absl::Status SettleOnTcp();
  absl::Status CallLanes(absl::Time now);

  OutgoingCall call_;
  bool settled_ = false;
  std::string received_;
  // By channel; all lanes of one before the next.
  std::vector<std::unique_ptr<OutgoingCall>> lane_calls_;
  std::vector<int> lane_channels_;
};

Greeting CallingPairing::MakeGreeting(Purpose purpose) const {
  return {.group = terms_.group,
          .from = static_cast<uint32_t>(terms_.rank),
          .to = static_cast<uint32_t>(peer_),
          .ranks = static_cast<uint32_t>(terms_.ranks),
          .purpose = purpose,
          .host = terms_.host,
          .bells = terms_.bells};
}

uint64_t CallingPairing::Seed() const {
  return terms_.group.generation * 1000 + static_cast<uint64_t>(terms_.rank);
}

absl::Status CallingPairing::Advance(absl::Time now) {
  if (!connected()) CADRE_RETURN_IF_ERROR(CallControl(now));
  if (connected() && !settled_) CADRE_RETURN_IF_ERROR(HearOffer());
  if (settled_ && !done()) CADRE_RETURN_IF_ERROR(CallLanes(now));
  return absl::OkStatus();
}

void CallingPairing::Watch(std::vector<pollfd>& polled, absl::Time& until) const {
  if (!connected()) call_.Watch(polled, until);
  if (connected() && !settled_) polled.push_back({.fd = control().fd(), .events = POLLIN});
  if (!done()) {
    for (const auto& call : lane_calls_) call->Watch(polled, until);
  }
}

absl::Status CallingPairing::last_failure() const {
  for (const auto& call : lane_calls_) {
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

absl::Status CallingPairing::HearOffer() {
  CADRE_ASSIGN_OR_RETURN(const bool all, Hear(&received_));
  if (!all) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const Offer offer, DecodeOffer(received_));
  std::vector<BellRope> ropes;
  std::shared_ptr<SharedSegment> segment = Accept(offer, &ropes);
  if (segment == nullptr) return SettleOnTcp();
  settled_ = true;
  CADRE_RETURN_IF_ERROR(Say(Encode(Settled{.lanes = 0})));
  ShareMemory(std::move(segment), 1, std::move(ropes));
  return absl::OkStatus();
}

std::shared_ptr<SharedSegment> CallingPairing::Accept(const Offer& offer,
                                                      std::vector<BellRope>* ropes) {
  if (offer.description.empty()) return nullptr;
  absl::StatusOr<std::shared_ptr<SharedSegment>> segment = SharedSegment::Open(offer.description);
  absl::StatusOr<std::vector<BellRope>> taken = TakeRopes(offer.bells);
  if (segment.ok() && taken.ok()) {
    *ropes = *std::move(taken);
    return *std::move(segment);
  }
  // Usual between containers of one machine.
  LOG(INFO) << "no shared memory with rank " << peer_ << ": "
            << (segment.ok() ? taken.status() : segment.status());
  return nullptr;
}

absl::Status CallingPairing::SettleOnTcp() {
  settled_ = true;
  const int lanes = terms_.lanes > 0
                        ? terms_.lanes
                        : LanesFor(call_.round_trip(), kBytesPerSecond, LargestWindow());
  absl::StatusOr<SocketAddress> address = AddressOfPeer(control());
  if (!address.ok()) return HungUp(address.status());
  CADRE_RETURN_IF_ERROR(Say(Encode(Settled{.lanes = static_cast<uint8_t>(lanes)})));
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    for (int lane = 0; lane < LanesOf(channel, lanes); ++lane) {
      const Purpose purpose{.channel = static_cast<uint8_t>(channel),
                            .lane = static_cast<uint8_t>(lane)};
      lane_calls_.push_back(std::make_unique<OutgoingCall>(
          absl::StrCat("rank ", peer_), [at = *address] { return std::vector<SocketAddress>{at}; },
          MakeGreeting(purpose), Seed()));
      lane_channels_.push_back(channel);
    }
  }
  return absl::OkStatus();
}

absl::Status CallingPairing::CallLanes(absl::Time now) {
  bool all = true;
  for (const auto& call : lane_calls_) {
    CADRE_RETURN_IF_ERROR(call->Advance(now));
    all = all && call->welcome();
  }
  if (!all) return absl::OkStatus();
  std::array<std::vector<Socket>, Transport::kChannels> lanes;
  for (size_t i = 0; i < lane_calls_.size(); ++i) {
    lanes[static_cast<size_t>(lane_channels_[i])].push_back(lane_calls_[i]->Take());
  }
  UseTcp(std::move(lanes));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> Pairing::Hear(std::string* text) {
  absl::StatusOr<bool> head = ReadUntil(control(), kHeadBytes, text);
  if (!head.ok()) return HungUp(head.status());
  if (!*head) return false;
  absl::StatusOr<bool> all = ReadUntil(control(), WholeBytes(*text), text);
  if (!all.ok()) return HungUp(all.status());
  return all;
}

absl::Status Pairing::Say(const std::string& text) {
  const absl::Status said = SendWhole(control(), text);
  return said.ok() ? said : HungUp(said);
}

absl::Status Pairing::HungUp(const absl::Status& how) const {
  // Not Unavailable for the caller to try again: this generation's group will not be.
  return absl::AbortedError(
      absl::StrCat("rank ", peer_, " hung up while the group was connecting: ", how.message()));
}

void Pairing::ShareMemory(std::shared_ptr<SharedSegment> segment, int side,
                          std::vector<BellRope> ropes) {
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    const auto i = static_cast<size_t>(channel);
    links_.links[i] =
        MakeSharedMemoryLink(segment, channel, side, std::move(ropes[i]), LinkKind::kSharedMemory);
  }
  done_ = true;
}

void Pairing::UseTcp(std::array<std::vector<Socket>, Transport::kChannels> lanes) {
  for (size_t i = 0; i < lanes.size(); ++i) links_.links[i] = MakeTcpLink(std::move(lanes[i]));
  done_ = true;
}

int LanesOf(int channel, int lanes) {
  // The order of calls is a few bytes at a time.
  return channel == Transport::kOrder ? std::min(lanes, 1) : lanes;
}

std::unique_ptr<Pairing> MakePairing(const PairingTerms& terms, int peer,
                                     const std::string& address) {
  if (peer > terms.rank) return std::make_unique<CalledPairing>(terms, peer);
  return std::make_unique<CallingPairing>(terms, peer, address);
}

}  // namespace cadre
