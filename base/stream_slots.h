// Limits of the number of streams of a service, in total and of each peer.
//
// Thread-safe.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

// ResourceExhausted ("busy: ..."): the caller retries the call later.
absl::Status TooManyStreams();

// Slots for streams of one kind. One peer may take three quarters of them, so that it cannot keep
// all others out. Must outlive the slots.
class StreamSlots {
 public:
  explicit StreamSlots(int max) : max_(max), max_of_peer_(max - max / 4) {}

  // The slot of one stream, if it has one. Its destructor returns it.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept { *this = std::move(other); }
    Slot& operator=(Slot&& other) noexcept {
      std::swap(slots_, other.slots_);
      std::swap(peer_, other.peer_);
      return *this;
    }
    ~Slot() {
      if (slots_ != nullptr) slots_->Return(peer_);
    }
    bool taken() const { return slots_ != nullptr; }

   private:
    friend class StreamSlots;
    Slot(StreamSlots* slots, std::string peer) : slots_(slots), peer_(std::move(peer)) {}

    StreamSlots* slots_ = nullptr;
    std::string peer_;
  };

  // Returns a slot that is not taken if no slot is free for this peer.
  Slot Take(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for a caller that must have the right to the call first. Errors: `authenticated`;
  // that of TooManyStreams.
  absl::StatusOr<Slot> Admit(const absl::Status& authenticated, const std::string& peer);

 private:
  void Return(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  const int max_;
  const int max_of_peer_;
  absl::Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> by_peer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
