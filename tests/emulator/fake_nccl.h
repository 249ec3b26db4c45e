// NCCL among the threads of one process: the functions of worker/transport/nccl/nccl_api.h, each
// rank a thread with an emulated device.
//
// Like NCCL: operations are enqueued and wait for their peers inside the stream (under
// EmulatedCuda::Mode::kInline that is the calling thread), all of a group make progress together, a
// send ends when it was received, captures keep operations, communicators that do not block say
// ncclInProgress until all ranks came, nothing ends by itself when a rank is lost. Sums are added
// in the order of ranks, fp32 in fp32, bf16 in fp32 and rounded once.
// A communicator is of the device that its maker's thread has chosen, and works for no other.
// Stricter: buffers are held against what the device allocated; a group's operations of one
// communicator go to one stream; peers that disagree about an operation fail the test with a
// message that names both, and the communicator.
// Not like it: operations of one communicator that two streams are given at once are not put in
// order.
//
// Ranks are those of ncclCommInitRank, also in the names of faults. One object is one network.
// Outlives its communicators' use. Thread-safe.
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
  // The call of `function` (a name of NcclApi) that comes after `after` others fails.
  void FailNext(absl::string_view function, ncclResult_t result, int64_t after = 0);
  // Nobody hears of this rank's init.
  void HangInit(int rank);
  // From now on nobody hears of this rank: its operations do nothing, those that wait end.
  void Kill(int rank);
  // The rank's aborts have their effect but do not return, until EndAborts, which waits for them.
  void HangAborts(int rank);
  void EndAborts();
  // The rank's communicators, those to come included, tell of this error.
  void Break(int rank, ncclResult_t error);
  // Calls that communicators which do not block may answer with ncclInProgress do, until
  // async_error has been asked so often. 0 at first.
  void set_polls(int polls);

  // --- what happened ----------------------------------------------------------------------------
  int64_t calls(absl::string_view function) const;
  // Not yet destroyed or aborted; not yet deregistered.
  int64_t live_communicators() const;
  int64_t live_registrations() const;
  // Operations that wait for others now.
  int64_t waiting() const;

 private:
  const std::unique_ptr<emulated::Network> network_;
};

}  // namespace cadre
