#include "tests/simulation/simulated_transport.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/transport/suspects.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kMaxMessageTime = absl::Milliseconds(5);
// Within this time, peers learn that a rank has failed.
constexpr absl::Duration kMaxNoticeTime = absl::Milliseconds(50);
// A message whose way is cut off is tried again after this time.
constexpr absl::Duration kTryAgain = absl::Seconds(1);

}  // namespace

class SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(std::shared_ptr<GroupLinks> links, uint32_t rank, Threads& threads)
      : links_(std::move(links)), rank_(rank), threads_(threads) {}
  ~SimulatedTransport() override { links_->Leave(rank_); }

  int rank() const override { return static_cast<int>(rank_); }
  int size() const override { return static_cast<int>(links_->ranks_); }
  LinkKind link(int peer) const override {
    return peer == rank() ? LinkKind::kSelf : LinkKind::kTcp;
  }

  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override;
  void Abort(absl::Status reason) override { links_->Fail(rank_, reason); }
  absl::Status status() const override { return self().status; }

 private:
  GroupLinks::Rank& self() const { return links_->joined_.at(rank_); }
  // Executes the transfer if it can be executed now.
  absl::StatusOr<bool> Try(int channel, const CallTag& tag, const Transfer& transfer,
                           const Combine& combine);

  const std::shared_ptr<GroupLinks> links_;
  const uint32_t rank_;
  Threads& threads_;
};

absl::StatusOr<bool> SimulatedTransport::Try(int channel, const CallTag& tag,
                                             const Transfer& transfer, const Combine& combine) {
  if (transfer.kind == Transfer::Kind::kSend) {
    links_->Send(rank_, transfer.peer, PeerChannel(channel),
                 {.tag = tag, .bytes = {transfer.data.begin(), transfer.data.end()}});
    return true;
  }
  auto& received = self().received[{transfer.peer, channel}];
  if (received.empty()) {
    if (!self().left[transfer.peer]) return false;
    return WithSuspects(
        absl::UnavailableError(absl::StrCat("rank ", transfer.peer, " has left the group")),
        {transfer.peer});
  }
  const GroupLinks::Message message = std::move(received.front());
  received.pop_front();
  if (message.tag != tag || message.bytes.size() != transfer.data.size()) {
    return absl::InternalError(
        absl::StrCat("ranks of one group enter different collectives: ", tag.ToString(), "; rank ",
                     transfer.peer, ": ", message.tag.ToString()));
  }
  if (transfer.kind == Transfer::Kind::kReceiveSum) {
    combine.add(transfer.data.data(), message.bytes.data(), message.bytes.size());
  } else {
    std::copy(message.bytes.begin(), message.bytes.end(), transfer.data.begin());
  }
  return true;
}

// Sends to a peer are executed in the order of the list, and so are receives.
absl::Status SimulatedTransport::Run(int channel, const CallTag& tag,
                                     std::span<const Transfer> transfers, const Combine& combine) {
  World& world = links_->world_;
  if (world.dice.Chance(world.faults.break_group) && !threads_.killed()) {
    world.Count("groups_broken");
    world.Log("net   the connections of a group break");
    Abort(absl::UnavailableError("the connections break"));
  }
  std::vector<bool> done(transfers.size());
  const auto advance = [&]() -> absl::StatusOr<bool> {
    bool advanced = false;
    std::set<std::pair<int, bool>> blocked;
    for (size_t i = 0; i < transfers.size(); ++i) {
      const Transfer& transfer = transfers[i];
      if (done[i]) continue;
      const std::pair order(transfer.peer, transfer.kind == Transfer::Kind::kSend);
      const bool follows = transfer.after != Transfer::kNone && !done[transfer.after];
      if (follows || blocked.contains(order)) {
        blocked.insert(order);
        continue;
      }
      CADRE_ASSIGN_OR_RETURN(done[i], Try(channel, tag, transfer, combine));
      if (!done[i]) blocked.insert(order);
      advanced = advanced || done[i];
    }
    return advanced;
  };
  while (true) {
    CADRE_RETURN_IF_ERROR(status());
    const absl::StatusOr<bool> advanced = advance();
    if (!advanced.ok()) {
      links_->Fail(rank_, advanced.status());
      return advanced.status();
    }
    if (std::all_of(done.begin(), done.end(), [](bool one) { return one; })) break;
    if (*advanced) continue;
    if (threads_.killed()) return absl::CancelledError("the process was killed");
    threads_.AwaitWake();
  }
  return absl::OkStatus();
}

// ---- The links

absl::StatusOr<std::unique_ptr<Transport>> GroupLinks::Connect(
    uint32_t rank, const HostConditions& host, Threads& threads, absl::Duration timeout,
    const std::function<bool()>& cancelled) {
  Rank& self = joined_[rank];
  self.host = &host;
  self.threads = &threads;
  self.left.resize(ranks_);
  for (auto& [other, joined] : joined_) {
    if (joined.threads != nullptr) joined.threads->Wake();
  }
  const absl::Time deadline = world_.timeline.now() + timeout;
  const auto connected = [&] {
    if (joined_.size() < ranks_) return false;
    return std::none_of(joined_.begin(), joined_.end(),
                        [&](const auto& other) { return IsCut(rank, other.first); });
  };
  auto transport = std::make_unique<SimulatedTransport>(shared_from_this(), rank, threads);
  while (!connected()) {
    CADRE_RETURN_IF_ERROR(self.status);
    if (cancelled() || threads.killed()) return absl::CancelledError("cancelled while connecting");
    if (world_.timeline.now() >= deadline) {
      std::vector<int> missing;
      for (uint32_t other = 0; other < ranks_; ++other) {
        if (!HasJoined(other)) missing.push_back(static_cast<int>(other));
      }
      return WithSuspects(absl::DeadlineExceededError("the group was not connected in time"),
                          missing);
    }
    threads.Await([&] { return connected() || cancelled() || !self.status.ok(); },
                  std::min(deadline, world_.timeline.now() + kTryAgain));
  }
  return transport;
}

bool GroupLinks::IsCut(uint32_t from, uint32_t to) const {
  if (from == to) return false;
  const absl::Time now = world_.timeline.now();
  const auto is_cut = [&](uint32_t rank) {
    const auto joined = joined_.find(rank);
    return joined != joined_.end() && joined->second.host->cut_bulk > now;
  };
  return is_cut(from) || is_cut(to);
}

void GroupLinks::Send(uint32_t from, uint32_t to, int channel, Message message) {
  const Rank& sender = joined_.at(from);
  if (sender.threads == nullptr || sender.threads->killed()) return;
  sent_[{from, to, channel}].push_back(std::move(message));
  world_.timeline.After(
      world_.dice.Between(absl::ZeroDuration(), kMaxMessageTime),
      [links = shared_from_this(), from, to, channel] { links->Deliver(from, to, channel); });
}

// Delivers the oldest message: messages that are faster than earlier ones wait for them.
void GroupLinks::Deliver(uint32_t from, uint32_t to, int channel) {
  if (IsCut(from, to)) {
    world_.timeline.After(kTryAgain, [links = shared_from_this(), from, to, channel] {
      links->Deliver(from, to, channel);
    });
    return;
  }
  auto& queue = sent_[{from, to, channel}];
  Rank& receiver = joined_.at(to);
  receiver.received[{from, channel}].push_back(std::move(queue.front()));
  queue.pop_front();
  if (receiver.threads != nullptr) receiver.threads->Wake();
}

void GroupLinks::Fail(uint32_t rank, const absl::Status& status) {
  Rank& self = joined_.at(rank);
  if (!self.status.ok() || self.threads == nullptr || self.threads->killed()) return;
  self.status = status;
  self.threads->Wake();
  const std::vector<int> suspects = SuspectsOf(status);
  absl::Status notice = WithSuspects(
      absl::UnavailableError(absl::StrCat("rank ", rank, " aborted: ", status.message())),
      {suspects.empty() ? static_cast<int>(rank) : suspects.front()});
  if (absl::IsCancelled(status) || IsOfRelease(status)) notice = WithRelease(std::move(notice));
  FailLater(rank, notice);
}

void GroupLinks::FailLater(uint32_t rank, const absl::Status& status) {
  for (const auto& [other, joined] : joined_) {
    if (other == rank || joined.threads == nullptr) continue;
    world_.timeline.After(
        world_.dice.Between(absl::ZeroDuration(), kMaxNoticeTime),
        [links = shared_from_this(), peer = other, status] { links->Fail(peer, status); });
  }
}

void GroupLinks::Leave(uint32_t rank) {
  Rank& self = joined_.at(rank);
  const bool killed = self.threads == nullptr || self.threads->killed();
  self.threads = nullptr;
  if (killed || !self.status.ok()) return;
  for (auto& [other, joined] : joined_) {
    if (other == rank) continue;
    world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), kMaxNoticeTime),
                          [links = shared_from_this(), rank, peer = other] {
                            Rank& informed = links->joined_.at(peer);
                            informed.left[rank] = true;
                            if (informed.threads != nullptr) informed.threads->Wake();
                          });
  }
}

void GroupLinks::OnProcessEnded(uint32_t rank, bool host_lost) {
  const auto self = joined_.find(rank);
  if (self == joined_.end() || self->second.threads == nullptr) return;
  self->second.threads = nullptr;
  if (host_lost || !self->second.status.ok()) return;
  FailLater(rank, WithSuspects(absl::UnavailableError(absl::StrCat("rank ", rank, " is lost")),
                               {static_cast<int>(rank)}));
}

std::shared_ptr<GroupLinks> Fabrics::Of(const v1::RankSlot& place, size_t ranks) {
  std::weak_ptr<GroupLinks>& found = links_[{place.run(), place.group(), place.generation()}];
  std::shared_ptr<GroupLinks> links = found.lock();
  if (links == nullptr) {
    links = std::make_shared<GroupLinks>(world_, ranks);
    found = links;
  }
  return links;
}

}  // namespace cadre::simulation
