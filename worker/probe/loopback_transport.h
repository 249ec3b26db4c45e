// A transport for a group in which only rank 0 exists. A training step of rank 0 does everything
// except for communication, so one process can time any plan for any number of ranks.
//
// Sent data are discarded. On the channel of moves, a receive returns what this rank sends in the
// same call (zeros if it sends nothing), so that values stay in their usual range. On other
// channels, receive buffers are left unchanged: the weights of other ranks' slices keep their
// initial values, and sums contain only this rank's part.
//
// The existing rank is rank 0 because rank 0 determines the order of the group's collectives
// (comm/collective_queue.h).
//
// Threads: as every transport.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "comm/transport/transport.h"

namespace cadre {

class LoopbackTransport final : public Transport {
 public:
  // Requires: size >= 1.
  explicit LoopbackTransport(int size);

  int rank() const override { return 0; }
  int size() const override { return size_; }
  LinkKind link(int peer) const override;

  absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                   const Combine& combine) override ABSL_LOCKS_EXCLUDED(mutex_);

  void Abort(absl::Status reason) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const int size_;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
