// A rank's contributions are coded on its device: the weights of the group are moved between the
// devices so that each rank has the part that it exchanges, and only the codes are copied to host
// memory.
//
// Memory of the device: three values for each value of the part, and two buffers of the longest
// possible frames. Owns them; borrows back end, slices and communicators. Thread-compatible.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "kernels/backend.h"
#include "member/contribution_coder.h"
#include "member/owned.h"
#include "member/regroup.h"

namespace cadre {

class DeviceContribution final : public ContributionCoder {
 public:
  // A collective. `slices`: what this rank owns, in the memory of the device. `control` and `data`
  // connect the ranks, and their devices. Requires: the back end has codecs().
  static absl::StatusOr<std::unique_ptr<ContributionCoder>> Make(Backend& kernels,
                                                                 std::vector<Owned> slices,
                                                                 Layout layout,
                                                                 Communicator& control,
                                                                 Communicator& data);

  absl::Status Adopt() override;
  absl::Status TakeChange() override;
  absl::Status Encode(size_t shard, std::string* frame) override;
  void Carry(size_t shard, bool left_out, float factor) override;
  absl::Status CopyOut(Kind kind, std::span<float> values) override;
  void SetCarried(std::span<const float> values) override;
  int64_t device_bytes() const override { return device_bytes_; }

 private:
  struct Shard {
    std::vector<ExchangeUnit> units;
    std::unique_ptr<CodedUnits> coded;
    // The interval of its values within the part.
    Interval values;
  };

  DeviceContribution(Backend& kernels, std::vector<Owned> slices, Layout layout, Regroup regroup);
  static std::span<float> In(const Shard& shard, const DeviceArray<float>& values) {
    return values.span().subspan(shard.values.begin, shard.values.size());
  }

  Backend& kernels_;
  Device& device_;
  const std::vector<Owned> slices_;
  const Codec codec_;
  Regroup regroup_;
  std::vector<Shard> shards_;
  // For the part: the change; the adopted version, which Encode replaces by what the frame leaves
  // out; and what is carried.
  DeviceArray<float> change_;
  DeviceArray<float> base_;
  DeviceArray<float> carried_;
  int64_t device_bytes_ = 0;
};

}  // namespace cadre
