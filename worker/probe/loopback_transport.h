// A transport of a group in which only rank 0 is there: everything of a training step happens but
// the wire, so that one process can time any plan of any number of ranks.
//
// What is sent goes nowhere. What is received on the moves' channel is what this rank sends in the
// same call (zeros where it sends nothing), as if its peers were like it, so that values stay
// usual ones; elsewhere what is there stays there: the weights of other ranks' slices keep their
// first values, and sums stay this rank's own.
//
// Only rank 0: it is the one that says in which order the group's collectives come
// (worker/comm/collective_queue.h).
//
// Threads: as every transport.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/transport/transport.h"

namespace cadre {

class LoopbackTransport final : public Transport {
 public:
  // Requires: size >= 1.
  explicit LoopbackTransport(int size);

  int rank() const override { return 0; }
  int size() const override { return size_; }
  LinkKind link(int peer) const override;
  // All are on one.
  uint64_t host(int /*peer*/) const override { return 1; }

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
