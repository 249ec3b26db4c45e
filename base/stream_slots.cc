#include "base/stream_slots.h"

#include <iterator>

namespace cadre {

absl::Status TooManyStreams() {
  return absl::ResourceExhaustedError("busy: too many concurrent streams; retry later");
}

StreamSlots::Slot StreamSlots::Take(const std::string& peer, Attempt attempt) {
  absl::MutexLock lock(&mutex_);
  if (const auto earlier = by_attempt_.find(attempt.of); earlier != by_attempt_.end()) {
    const uint64_t id = earlier->second;
    const std::function<void()> on_replaced = std::move(holders_.at(id).attempt.on_replaced);
    Free(id);
    on_replaced();
  }
  const auto found = by_peer_.find(peer);
  const int of_peer = found == by_peer_.end() ? 0 : found->second;
  if (std::ssize(holders_) >= max_ || of_peer >= max_of_peer_) return Slot();
  const uint64_t id = ++last_id_;
  ++by_peer_[peer];
  if (!attempt.of.empty()) by_attempt_[attempt.of] = id;
  holders_[id] = {peer, std::move(attempt)};
  return Slot(this, id);
}

void StreamSlots::Free(uint64_t id) {
  const auto holder = holders_.find(id);
  if (holder == holders_.end()) return;
  const auto of_peer = by_peer_.find(holder->second.peer);
  if (--of_peer->second == 0) by_peer_.erase(of_peer);
  by_attempt_.erase(holder->second.attempt.of);
  holders_.erase(holder);
}

void StreamSlots::Return(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  Free(id);
}

absl::StatusOr<StreamSlots::Slot> StreamSlots::Admit(const absl::Status& authenticated,
                                                     const std::string& peer, Attempt attempt) {
  if (!authenticated.ok()) return authenticated;
  Slot slot = Take(peer, std::move(attempt));
  if (!slot.taken()) return TooManyStreams();
  return slot;
}

}  // namespace cadre
