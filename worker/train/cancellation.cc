#include "worker/train/cancellation.h"

#include <utility>

namespace cadre {

void Cancellation::Cancel(absl::Status reason) {
  absl::MutexLock lock(&mutex_);
  if (!reason_.ok()) return;
  reason_ = std::move(reason);
  // Under the lock, so that the owner of a handler cannot be destroyed while the handler runs.
  for (const auto& [id, handler] : handlers_) handler(reason_);
}

absl::Status Cancellation::status() const {
  absl::MutexLock lock(&mutex_);
  return reason_;
}

Cancellation::Registration Cancellation::OnCancel(Handler handler) {
  absl::MutexLock lock(&mutex_);
  if (!reason_.ok()) handler(reason_);
  const uint64_t id = next_id_++;
  handlers_.emplace(id, std::move(handler));
  return Registration(*this, id);
}

void Cancellation::Unregister(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  handlers_.erase(id);
}

}  // namespace cadre
