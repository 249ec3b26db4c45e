// Moves values of a group's model between the slices that ranks own, which depend on the plan, and
// contiguous parts of the parameter order, which do not: each rank exchanges one part with the
// aggregators when contributions or versions are coded.
//
// Slices and parts are in host memory, or in that of the ranks' devices. Thread-compatible; borrows
// device and communicators.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "member/owned.h"
#include "tensor/interval.h"

namespace cadre {

class Regroup {
 public:
  // A collective. `owned`: the positions of this rank's slices, in any order; `part`: those of its
  // part. Requires: both the slices and the parts of all ranks partition the model.
  static absl::StatusOr<Regroup> Make(std::span<const Owned> owned, Interval part,
                                      Communicator& group);
  // The same in the memory of a device. `control` connects the ranks, and `data` their devices.
  static absl::StatusOr<Regroup> Make(std::span<const Owned> owned, Interval part,
                                      Communicator& control, Device& device, Communicator& data);

  // Collectives, enqueued on the current stream. `owned`: as passed to Make; `part`: the values of
  // the part.
  absl::Status ToPart(std::span<const Owned> owned, std::span<float> part);
  absl::Status FromPart(std::span<const float> part, std::span<const Owned> owned);

 private:
  using Buffers = std::vector<DeviceArray<float>>;

  explicit Regroup(Communicator& data) : data_(&data) {}
  absl::Status Prepare(std::span<const Owned> owned, Interval part, Communicator& control,
                       Device& device);
  absl::Status AllToAll(const Buffers& send, const Buffers& receive);
  void Copy(const float* from, float* to, int64_t size);
  // Calls use(values, size) for what the slices and the part of `rank` share, in parameter order.
  template <typename Use>
  void ForEachInSlices(std::span<const Owned> owned, int rank, const Use& use) const;
  // Calls use(offset in the part, size) for what the part and the slices of `rank` share.
  template <typename Use>
  void ForEachInPart(int rank, const Use& use) const;

  // Null: the device is borrowed.
  std::unique_ptr<Device> host_;
  Device* device_ = nullptr;
  Communicator* data_;
  // Indices of Make's `owned` in parameter order.
  std::vector<size_t> order_;
  // By rank, in parameter order.
  std::vector<std::vector<Interval>> slices_;
  std::vector<Interval> parts_;
  // By rank: what this rank's slices share with the part of the other, and what its part shares
  // with the slices of the other. Empty for this rank, which copies what its slices and its part
  // share.
  Buffers of_slices_;
  Buffers of_part_;
};

}  // namespace cadre
