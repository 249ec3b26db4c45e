#include "base/stream_slots.h"

namespace cadre {

absl::Status TooManyStreams() {
  return absl::ResourceExhaustedError("busy: too many concurrent streams; retry later");
}

StreamSlots::Slot StreamSlots::Take(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  const int of_peer = found == by_peer_.end() ? 0 : found->second;
  if (taken_ >= max_ || of_peer >= max_of_peer_) return Slot();
  ++taken_;
  ++by_peer_[peer];
  return Slot(this, peer);
}

void StreamSlots::Return(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  --taken_;
  const auto found = by_peer_.find(peer);
  if (--found->second == 0) by_peer_.erase(found);
}

absl::StatusOr<StreamSlots::Slot> StreamSlots::Admit(const absl::Status& authenticated,
                                                     const std::string& peer) {
  if (!authenticated.ok()) return authenticated;
  Slot slot = Take(peer);
  if (!slot.taken()) return TooManyStreams();
  return slot;
}

}  // namespace cadre
