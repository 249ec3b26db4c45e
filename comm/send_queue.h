// Sends messages in the background, in an order that is fixed in advance.
//
// A rank declares the messages of a step, then posts each one when its data is ready, in any order.
// A thread sends them in the declared order on channel kSends; the peers receive them in the same
// order on channel kReceives (ReceiveTag). plan/tape.cc and plan/pipeline.cc explain why ranks that
// do this cannot deadlock.
//
// Owns its thread, which starts with the first message; borrows the transport, whose channel kSends
// is reserved for the queue. Threads: one thread uses the object.
//
// Guarantees: the first error ends the queue: nothing more is sent, and Wait returns the error.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "comm/transport/transport.h"

namespace cadre {

class SendQueue {
 public:
  explicit SendQueue(Transport& transport) : transport_(transport) {}
  // Aborts the transport if messages are unsent, because peers wait for them.
  ~SendQueue();
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  // Declares messages, which are sent after all that were declared before, in this order.
  void Expect(std::span<const uint32_t> numbers) ABSL_LOCKS_EXCLUDED(mutex_);
  // The message is ready: it consists of these transfers, which are sends. Their data is borrowed
  // until it is sent. Requires: `number` is expected and was not posted.
  void Post(uint32_t number, std::vector<Transfer> transfers) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether these messages are sent. Requires: all of them were posted.
  bool AreSent(std::span<const uint32_t> numbers) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns when these messages are sent. Requires: all of them were posted.
  absl::Status WaitFor(std::span<const uint32_t> numbers) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns when every expected message is sent. Requires: all of them were posted.
  absl::Status Wait() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool CanSend() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (!expected_.empty() && ready_.count(expected_.front()) > 0);
  }
  // Posted messages are in ready_ until they are sent.
  bool AreGone(std::span<const uint32_t> numbers) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return expected_.empty() || !status_.ok();
  }

  Transport& transport_;
  mutable absl::Mutex mutex_;
  // Unsent messages, the one that is being sent included.
  std::deque<uint32_t> expected_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, std::vector<Transfer>> ready_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// The tag of message `number`, for Transport::Run on kReceives.
CallTag ReceiveTag(uint32_t number);

}  // namespace cadre
