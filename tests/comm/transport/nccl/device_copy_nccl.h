// An NCCL among threads whose ranks share one CUDA device (in_process_nccl.h). It tests plans with
// the kernels of a device, without the time slices of a process per rank. It is not a test of NCCL.
//
// Each rank is a thread with streams of its own. A group call posts the data of the rank and an
// event to its peers and waits on the host until they have posted. Then it makes the stream wait
// for their events, copies or adds their data and posts another event; its own stream waits until
// the peers have read its data. Therefore the work of a device waits only for work that has been
// enqueued before it, and buffers may be used again by later work of the stream.
//
// Uses only functions of CudaApi, so the device may be an emulated one. Limits:
// - Group calls block the host until the peers make theirs, so the ranks' threads must make the
//   calls on all communicators in one order. NCCL requires that of the host only when communicators
//   connect; plans follow it always.
// - A rank that waits longer than `limit`, and a rank that aborts a communicator, break it on all
//   ranks, with a message that names the communicator, the rank and the operation.
// - Operations cannot be captured, because a capture cannot wait for the peers: a group call on a
//   stream that is being captured returns ncclInvalidUsage. Groups of several ranks record no
//   steps.
// - A communicator has at most kMaxSummands ranks.
//
// The device must outlive the object. Thread-safe, as NCCL.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "device/cuda/cuda_api.h"
#include "tests/comm/transport/nccl/in_process_nccl.h"

namespace cadre {

class DeviceCopyNccl final : public in_process::InProcessNccl {
 public:
  // The streams of all ranks belong to device `ordinal`.
  explicit DeviceCopyNccl(const CudaApi& cuda, int ordinal = 0,
                          absl::Duration limit = absl::Minutes(2));
  ~DeviceCopyNccl() override;

 private:
  using Offer = in_process::Offer;
  using Operation = in_process::Operation;
  using Mark = in_process::Mark;
  class Events;
  class Event;
  // Device memory for the inputs of collectives in place.
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
    bool used = false;
  };

  ncclResult_t Submit(const Member& member, Operations operations, cudaStream_t stream) override;
  absl::StatusOr<Offer> MakeOffer(const Operation& operation, int rank, int ranks,
                                  cudaStream_t stream) override;
  absl::StatusOr<in_process::MarkPtr> MarkNow(cudaStream_t stream) override;
  absl::Status Follow(const Mark* mark, cudaStream_t stream) override;
  absl::Status Copy(const void* from, void* to, size_t bytes, cudaStream_t stream) override;
  absl::Status Sum(ncclDataType_t type, const std::vector<const char*>& inputs, size_t offset,
                   size_t count, void* to, cudaStream_t stream) override;
  bool offers_are_copies() const override { return false; }

  absl::Status StatusOf(cudaError_t error, const char* what) const;
  bool IsCaptured(cudaStream_t stream);
  absl::StatusOr<void*> TakeScratch(size_t bytes, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(scratch_mutex_);
  void ReleaseScratch(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(scratch_mutex_);

  const CudaApi cuda_;
  const int ordinal_;
  // Shared with the events that are in use.
  const std::shared_ptr<Events> events_;
  absl::Mutex scratch_mutex_;
  // A stream's blocks are for its work only, so that the stream orders their uses.
  std::map<cudaStream_t, std::vector<Block>> scratch_ ABSL_GUARDED_BY(scratch_mutex_);
};

}  // namespace cadre
