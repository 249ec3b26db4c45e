// Limits of the number of streams of a service, in total and of each peer.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
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
  // What a stream is an attempt at, of which the newest counts: the next one takes its slot.
  struct Attempt {
    // Identifies it among the attempts of the service. Empty: streams of this kind exist together.
    std::string of;
    // Called once, with a lock of the slots held, when a newer attempt has taken the slot; not
    // after the slot is destroyed. Must not block, or call the slots.
    std::function<void()> on_replaced;
  };

  explicit StreamSlots(int max) : max_(max), max_of_peer_(max - max / 4) {}

  // The slot of one stream, if it has one. Its destructor returns it.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept { *this = std::move(other); }
    Slot& operator=(Slot&& other) noexcept {
      std::swap(slots_, other.slots_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Slot() {
      if (slots_ != nullptr) slots_->Return(id_);
    }
    // Whether the stream has received a slot. A newer attempt may have taken it since.
    bool taken() const { return slots_ != nullptr; }

   private:
    friend class StreamSlots;
    Slot(StreamSlots* slots, uint64_t id) : slots_(slots), id_(id) {}

    StreamSlots* slots_ = nullptr;
    uint64_t id_ = 0;
  };

  // Returns a slot that is not taken if no slot is free for this peer, besides that of an earlier
  // attempt at the same, which has lost it in any case.
  Slot Take(const std::string& peer, Attempt attempt = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for a caller that must have the right to the call first. Errors: `authenticated`;
  // that of TooManyStreams.
  absl::StatusOr<Slot> Admit(const absl::Status& authenticated, const std::string& peer,
                             Attempt attempt = {});

 private:
  struct Holder {
    std::string peer;
    Attempt attempt;
  };

  void Return(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Does nothing if a newer attempt has taken the slot.
  void Free(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int max_;
  const int max_of_peer_;
  absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Holder> holders_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> by_peer_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> by_attempt_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
