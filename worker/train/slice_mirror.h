// Host copies of slices in device memory: pinned memory of the same size, and copies in both
// directions. On the host the slices are their own mirror, and nothing is copied.
//
// Owns the pinned memory; borrows device and slices. Thread-compatible.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"

namespace cadre {

class SliceMirror {
 public:
  SliceMirror(Device& device, std::vector<std::span<float>> slices)
      : device_(device), slices_(std::move(slices)) {
    if (device.is_host()) return;
    size_t all = 0;
    for (const std::span<float> slice : slices_) all += slice.size();
    pinned_ = PinnedArray<float>(device, all);
    offsets_.reserve(slices_.size());
    all = 0;
    for (const std::span<float> slice : slices_) {
      offsets_.push_back(all);
      all += slice.size();
    }
  }

  // The host's copy of slice `i`. Null data after an allocation error (Device::status()).
  std::span<float> host(size_t i) const {
    if (device_.is_host()) return slices_[i];
    if (pinned_.data() == nullptr) return {};
    return pinned_.span().subspan(offsets_[i], slices_[i].size());
  }

  // Enqueue copies on the current stream. No-ops on the host.
  void CopyToHostAsync(size_t i) const {
    const std::span<float> to = host(i);
    if (device_.is_host() || to.empty()) return;
    device_.CopyToHostAsync(slices_[i].data(), to.data(), to.size_bytes());
  }
  void CopyToDeviceAsync(size_t i) const {
    const std::span<float> from = host(i);
    if (device_.is_host() || from.empty()) return;
    device_.CopyToDeviceAsync(from.data(), slices_[i].data(), from.size_bytes());
  }

  size_t size() const { return slices_.size(); }
  std::span<float> slice(size_t i) const { return slices_[i]; }

 private:
  Device& device_;
  std::vector<std::span<float>> slices_;
  // All slices, contiguous.
  PinnedArray<float> pinned_;
  std::vector<size_t> offsets_;
};

}  // namespace cadre
