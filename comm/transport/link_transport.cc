#include "comm/transport/link_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/hardware.h"
#include "base/status.h"
#include "comm/transport/channel.h"
#include "comm/transport/control_connections.h"

namespace cadre {
namespace {

class LinkTransport final : public Transport {
 public:
  LinkTransport(int rank, std::vector<Socket> controls, std::vector<uint64_t> hosts)
      : rank_(rank), hosts_(std::move(hosts)), control_(rank, std::move(controls)) {
    control_.OnChange([this] { WakeChannels(); });
  }
  ~LinkTransport() override { control_.SendGoodbye(); }

  void AddChannel(std::vector<std::unique_ptr<Link>> links, std::unique_ptr<Wakeup> wakeup,
                  Socket wake, absl::Duration timeout);

  int rank() const override { return rank_; }
  int size() const override { return control_.size(); }
  LinkKind link(int peer) const override {
    const Link* link = channels_[0]->link(peer);
    return link == nullptr ? LinkKind::kSelf : link->kind();
  }

  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override {
    return channels_[channel]->Run(tag, transfers, combine);
  }
  void Abort(absl::Status reason) override { control_.Fail(reason).IgnoreError(); }
  absl::Status status() const override { return control_.status(); }
  absl::Status Poll() override { return control_.Poll(); }

 private:
  void WakeChannels();

  const int rank_;
  const std::vector<uint64_t> hosts_;
  ControlConnections control_;
  // Destroyed after the goodbye and before the control connections, which they use.
  std::vector<std::unique_ptr<Channel>> channels_;
};

void LinkTransport::AddChannel(std::vector<std::unique_ptr<Link>> links,
                               std::unique_ptr<Wakeup> wakeup, Socket wake,
                               absl::Duration timeout) {
  const auto local_ranks = std::count(hosts_.begin(), hosts_.end(), hosts_[rank_]);
  channels_.push_back(std::make_unique<Channel>(
      Channel::Options{.rank = rank_,
                       .timeout = timeout,
                       .oversubscribed = local_ranks > std::ssize(UsableCpus())},
      std::move(links), std::move(wakeup), std::move(wake), control_));
}

void LinkTransport::WakeChannels() {
  for (const auto& channel : channels_) {
    if (control_.failed()) channel->Shutdown();
    channel->Interrupt();
  }
}

}  // namespace

absl::StatusOr<Wakeups> MakeWakeups() {
  Wakeups wakeups;
  for (std::unique_ptr<Wakeup>& wakeup : wakeups) {
    CADRE_ASSIGN_OR_RETURN(wakeup, Wakeup::Make());
  }
  return wakeups;
}

absl::StatusOr<std::unique_ptr<Transport>> MakeLinkTransport(int rank, std::vector<PeerLinks> peers,
                                                             Wakeups wakeups,
                                                             absl::Duration timeout) {
  CHECK(rank >= 0 && rank < std::ssize(peers)) << rank << " of " << peers.size();
  std::vector<Socket> controls;
  std::vector<uint64_t> hosts;
  for (PeerLinks& peer : peers) {
    controls.push_back(std::move(peer.control));
    hosts.push_back(peer.host);
  }
  auto transport = std::make_unique<LinkTransport>(rank, std::move(controls), std::move(hosts));
  for (int channel = 0; channel < Transport::kChannels; ++channel) {
    CADRE_ASSIGN_OR_RETURN(Socket wake, MakeWake());
    std::vector<std::unique_ptr<Link>> links;
    for (PeerLinks& peer : peers) links.push_back(std::move(peer.links[channel]));
    transport->AddChannel(std::move(links), std::move(wakeups[channel]), std::move(wake), timeout);
  }
  return transport;
}

}  // namespace cadre
