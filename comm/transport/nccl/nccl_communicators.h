// Creates, uses and ends the NCCL communicators of one rank.
//
// They are non-blocking: no call of NCCL blocks its caller, so every wait here has a deadline and
// ends with the first error. A watcher thread polls for asynchronous errors of NCCL, failures of
// the host transport and failures of the device. The first error marks all three as failed, and
// then all communicators are aborted, which releases the streams that wait for a lost peer. Each
// abort runs on a separate thread, because it may block forever (if the context is broken, or a
// graph still exists); such a thread is abandoned after a while, earlier if the device is lost.
//
// Guarantees: the CudaDevice is marked as failed before a communicator is aborted because of an
// error, so a caller that synchronizes with an interrupted collective gets an error and never
// partial data.
//
// Owns the communicators and the watcher; borrows the rest, which must outlive it. The functions of
// NcclApi must remain callable afterwards, by abandoned threads. Captured graphs that use a
// communicator must be destroyed before this object, because NCCL waits for them.
//
// Threads: Fail and status() are thread-safe; everything else is for the thread that enqueues.
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
#include "comm/transport/nccl/nccl_api.h"
#include "comm/transport/transport.h"
#include "device/cuda/cuda_device.h"

namespace cadre {

class NcclCommunicators {
 public:
  // `timeout`: maximum time to wait for other ranks, when a communicator is created and when it
  // connects to peers; see set_timeout. `end_timeout`: maximum time for NCCL to abort or destroy a
  // communicator.
  NcclCommunicators(const NcclApi& api, CudaDevice& device, Transport& host, absl::Duration timeout,
                    absl::Duration end_timeout = absl::Seconds(10));
  // Finalizes and destroys all communicators; aborts them after an error or if NCCL does not
  // finalize within a few seconds. Never blocks forever.
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  // Replaces `timeout` for the following calls.
  void set_timeout(absl::Duration timeout) { timeout_ = timeout; }

  // Creates a communicator of all ranks, which call it with equal ids, and returns its number.
  // `name` is used in messages. Errors: DeadlineExceeded, naming the operation; those of
  // nccl_api.h; the first error.
  absl::StatusOr<int> Make(const ncclUniqueId& id, absl::string_view name);
  // Splits `parent` into one communicator per color, with ranks in the order of `key`. A collective
  // of all members of `parent`. Errors: as Make.
  absl::StatusOr<int> Split(int parent, int color, int key, absl::string_view name);

  // Enqueues the operations of `calls` as one NCCL group call (ncclGroupStart to ncclGroupEnd).
  // Errors: as Make.
  absl::Status Enqueue(int number, const CallTag& tag,
                       absl::FunctionRef<ncclResult_t(ncclComm_t)> calls);

  // Lets every communicator map the memory; failures are ignored.
  void Register(void* memory, size_t bytes);
  void Deregister(void* memory);

  // Fails the group of ranks, unless it has failed already. Requires: !error.ok().
  void Fail(absl::Status error) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first error, or OK. Includes failures of the host transport and the device that the watcher
  // has not noticed yet.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Comm {
    std::string name;
    // Null until the communicator is created, and when its end has begun.
    ncclComm_t handle = nullptr;
    // Where NCCL stores a new communicator, possibly as late as during an abort.
    ncclComm_t created = nullptr;
    // The communicator that is being split from this one.
    std::shared_ptr<Comm> splitting;
    // Description of the operation that creates the communicator; empty when none is in progress.
    std::string operation;
    // Registered memory and NCCL's handles of it.
    std::vector<std::pair<void*, void*>> registered;
  };
  using EndFunction = ncclResult_t (*)(ncclComm_t);

  bool Failed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !status_.ok(); }
  Comm& At(int number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return *comms_[number]; }
  // Selects the device in the calling thread; a new thread would use the first device of the host.
  absl::Status SetDevice();
  // Records the first error and marks the device as failed; returns false if an error was recorded
  // before.
  bool RecordFirst(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls Fail and returns the first error.
  absl::Status FailedWith(absl::Status error) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `create`, which starts an operation on communicator `busy`, and waits for its end.
  absl::Status Create(int busy, const std::string& operation,
                      absl::FunctionRef<ncclResult_t(Comm& busy, ncclConfig_t& config)> create)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the communicator has no operation in progress on the host.
  absl::Status AwaitReady(int number, absl::string_view what) ABSL_LOCKS_EXCLUDED(mutex_);
  // NCCL's state of the communicator; ncclSuccess if it does not exist.
  ncclResult_t StateOf(const Comm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The status of an error. `what` describes the failed operation; while the communicator is being
  // created, Comm::operation is used instead.
  absl::Status ErrorOf(const Comm& comm, ncclResult_t error, absl::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int Add(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);

  // The watcher thread.
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns a new error of the host transport, the device or NCCL, or OK.
  absl::Status Poll() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckComms() ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds the name of the lost peer to an Unavailable error if the host transport knows it.
  absl::Status WithLostPeer(const absl::Status& error) const;

  // Aborts all communicators.
  void AbortAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `end` for each communicator, concurrently, because ending one communicator may wait for
  // work on the device that is enqueued after work of another communicator. Returns when all have
  // ended or have been abandoned.
  void EndComms(EndFunction end, std::vector<std::pair<ncclComm_t, std::shared_ptr<Comm>>> comms);
  // Errors: that of the host transport or of NCCL; DeadlineExceeded.
  absl::Status Finalize(ncclComm_t comm);

  const NcclApi& api_;
  CudaDevice& device_;
  Transport& host_;
  absl::Duration timeout_;
  const absl::Duration end_timeout_;

  // Held during every call of NCCL on a communicator except aborts and NCCL group calls. While a
  // group call is being enqueued, no other call is made, unless the group call blocks.
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Comm>> comms_ ABSL_GUARDED_BY(mutex_);
  // The last enqueued call, for messages.
  CallTag last_ ABSL_GUARDED_BY(mutex_);
  // Whether an NCCL group call is being enqueued, and since when.
  bool enqueuing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time enqueuing_since_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace cadre
