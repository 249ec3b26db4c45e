// A fake NCCL for tests, among the threads of one process (in_process_nccl.h). Each rank is a
// thread with an emulated device.
//
// Like NCCL: operations are enqueued and wait for their peers inside the stream (in the calling
// thread with EmulatedCuda::Mode::kInline); operations can be captured; operations do not end by
// themselves if a rank is lost. A communicator belongs to the device that was current when it was
// made, and does not work on other devices. Stricter: buffers must be within allocations of the
// device; operations of peers that do not match fail the test.
//
// One object is one network, and must outlive the use of its communicators. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/comm/transport/nccl/in_process_nccl.h"

namespace cadre {

class FakeNccl final : public in_process::InProcessNccl {
 public:
  FakeNccl() : InProcessNccl({}) {}

 private:
  using Offer = in_process::Offer;
  using Operation = in_process::Operation;
  using Mark = in_process::Mark;

  ncclResult_t Submit(const Member& member, Operations operations, cudaStream_t stream) override;
  // The offer is a copy, which the mark owns.
  absl::StatusOr<Offer> MakeOffer(const Operation& operation, int rank, int ranks,
                                  cudaStream_t stream) override;
  absl::StatusOr<in_process::MarkPtr> MarkNow(cudaStream_t /*stream*/) override { return nullptr; }
  absl::Status Follow(const Mark* /*mark*/, cudaStream_t /*stream*/) override {
    return absl::OkStatus();
  }
  absl::Status Copy(const void* from, void* to, size_t bytes, cudaStream_t stream) override;
  absl::Status Sum(ncclDataType_t type, const std::vector<const char*>& inputs, size_t offset,
                   size_t count, void* to, cudaStream_t stream) override;
  bool offers_are_copies() const override { return true; }
  ncclResult_t CheckBuffers(const Operation& operation, const in_process::Communicator& member,
                            cudaStream_t stream) override;
  std::map<uint64_t, int> CurrentDevices() const override;
  void OnMistake(const std::string& what) override;
};

}  // namespace cadre
