// The NCCL communicators of one rank: made, selected, split, and brought to an end together.
//
// They are non-blocking: no call of NCCL holds its caller, so every wait here has a deadline and
// sees the first error, wherever it comes from. A watcher thread looks every few milliseconds for
// errors that NCCL finds in the background, for the end of the host transport and for a device that
// failed. The first error is told to all three, and then all communicators are aborted, which makes
// the device give up what it waits for. Their end may itself wait for ever, for a context that is
// dead or a graph that is not gone: it has a thread of its own, which is left group_failed after a
// while, and soon where the device is lost.
//
// Owns the communicators and the watcher. Borrows the rest, which outlives it, but for NCCL itself,
// in which an end that was left group_failed stays. Recordings (device.h) of calls on a
// communicator are gone before this object: NCCL waits for them.
//
// Threads: Fail and status() are thread-safe; everything else is for the one thread that enqueues.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "device/cuda/cuda_device.h"
#include "worker/transport/call_tag.h"
#include "worker/transport/nccl/nccl_api.h"
#include "worker/transport/transport.h"

namespace cadre {

class NcclCommunicators {
 public:
  // `timeout`: longest wait for other ranks to do their part, in making a communicator and in
  // connecting to peers. `ending`: for NCCL to abort or destroy one.
  NcclCommunicators(const NcclApi& api, CudaDevice& device, Transport& host, absl::Duration timeout,
                    absl::Duration ending = absl::Seconds(10));
  // Finalizes and destroys; aborts what does not end within a few seconds, and after an error all.
  // Waits for no call of NCCL for ever.
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  // All ranks call it with one id. Returns the communicator's number. `name`, for people.
  // Errors: DeadlineExceeded, saying what is waited for; those of nccl_error.h; the first error.
  absl::StatusOr<int> Make(const ncclUniqueId& id, absl::string_view name);
  // All members of `parent` call it; those of one color get one of their own, ordered by key.
  absl::StatusOr<int> Split(int parent, int color, int key, absl::string_view name);

  // What `calls` enqueues with the communicator goes as one group.
  absl::Status Enqueue(int number, const CallTag& tag,
                       absl::FunctionRef<ncclResult_t(ncclComm_t)> calls);

  // Every communicator may map the memory. What NCCL refuses stays as it is.
  void Register(void* memory, size_t bytes);
  void Deregister(void* memory);

  // The first error stays. Requires: !error.ok().
  void Fail(absl::Status error) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first error, or OK; the host transport's and the device's are seen at once.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Comm {
    std::string name;
    ncclComm_t handle = nullptr;
    // Where NCCL writes what it makes, and may once more when that ends.
    ncclComm_t made = nullptr;
    // What is being split from it.
    std::shared_ptr<Comm> splitting;
    // What is being made of it, in words; empty otherwise.
    std::string making;
    // Memory and what NCCL calls it.
    std::vector<std::pair<void*, void*>> registered;
  };

  bool Failed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !status_.ok(); }
  Comm& At(int number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return *all_[number]; }
  // NCCL's calls are about the calling thread's device, and a new thread's is the machine's first.
  absl::Status SetDevice();
  // Keeps the first error; true where this is it.
  bool RecordFirst(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails with `error` unless something was first; returns what was.
  absl::Status FailedWith(absl::Status error) ABSL_LOCKS_EXCLUDED(mutex_);
  // Until the communicator has nothing under way on the host.
  absl::Status AwaitReady(int number, absl::string_view what) ABSL_LOCKS_EXCLUDED(mutex_);
  // What NCCL says of one; success where there is none.
  ncclResult_t StateOf(const Comm& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `state` in words. Requires: an error.
  absl::Status ErrorOf(const Comm& one, ncclResult_t state, absl::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int Add(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);

  // -- the watcher's
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  // An error that is new; OK where there is none.
  absl::Status Poll() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckComms() ABSL_LOCKS_EXCLUDED(mutex_);
  // The host transport may know whom NCCL has lost.
  absl::Status WithLostPeer(const absl::Status& error) const;
  void AbortAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // `end` of each, beside one another: one may wait for work on the device that stands behind
  // another's. Returns when all have ended, and no later than after a few seconds.
  void EndComms(ncclResult_t (*end)(ncclComm_t),
                std::vector<std::pair<ncclComm_t, std::shared_ptr<Comm>>> comms);

  // -- the end
  void StopWatching() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: it did not end.
  bool Finalize(ncclComm_t comm);

  const NcclApi& api_;
  CudaDevice& device_;
  Transport& host_;
  const absl::Duration timeout_;
  const absl::Duration ending_;

  // Held for every call of NCCL on a communicator but for its abort and a group: while one of those
  // is enqueued nothing else is called, unless it hangs.
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Comm>> all_ ABSL_GUARDED_BY(mutex_);
  // What was enqueued last, and on which; for messages.
  CallTag last_ ABSL_GUARDED_BY(mutex_);
  // A group is being enqueued.
  bool enqueuing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time enqueuing_since_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace cadre
