// A fake NCCL among the threads of one process: the functions of worker/transport/nccl/nccl_api.h;
// each rank is a thread with an emulated device.
//
// Like NCCL: operations are enqueued and wait for their peers inside the stream (in the calling
// thread with EmulatedCuda::Mode::kInline); the operations of a group make progress together; a
// send ends when it has been received; operations can be captured; non-blocking communicators
// return ncclInProgress until all ranks have joined; operations do not end by themselves if a rank
// is lost. Sums are added in the order of the ranks, fp32 in fp32, bf16 in fp32 and rounded once. A
// communicator belongs to the current device of the thread that made it, and works for no other.
// Stricter: buffers must be within allocations of the device; a group's operations of one
// communicator must use one stream; operations of peers that do not match fail the test with a
// message that names both, and the communicator. Unlike NCCL: operations of one communicator on two
// streams are not ordered.
//
// Ranks are those of ncclCommInitRank, for faults, too. One object is one network and must outlive
// the use of its communicators. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "worker/transport/nccl/nccl_api.h"

namespace cadre {

namespace emulated {
class Network;
}  // namespace emulated

class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  const NcclApi& api() const;

  // --- faults -----------------------------------------------------------------------------------
  // The next call of `function` (a member of NcclApi) after `after` others fails.
  void FailNext(absl::string_view function, ncclResult_t result, int64_t after = 0);
  // The rank's init never reaches its peers.
  void HangInit(int rank);
  // From now on the rank is lost: its operations have no effect, and those that wait end.
  void Kill(int rank);
  // The rank's aborts take effect but do not return until EndAborts, which waits for them.
  void HangAborts(int rank);
  void EndAborts();
  // The rank's communicators, including later ones, report this error.
  void Break(int rank, ncclResult_t error);
  // Calls of non-blocking communicators that may return ncclInProgress do so until async_error has
  // been called this often. 0 initially.
  void set_polls(int polls);

  // --- observations ----------------------------------------------------------------------------
  int64_t calls(absl::string_view function) const;
  // Not yet destroyed or aborted; not yet deregistered.
  int64_t live_communicators() const;
  int64_t live_registrations() const;
  // Operations that wait for peers now.
  int64_t waiting() const;

 private:
  const std::unique_ptr<emulated::Network> network_;
};

}  // namespace cadre
