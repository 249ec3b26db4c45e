// Gives the host access to the slices that a rank owns (weights and optimizer states).
//
// If the rank computes on a device, the slices are in device memory, and the host has a mirror of
// each: Fetch copies the slices to the mirrors, Store copies them back. If it computes on the host,
// the slices are their own mirrors, and Fetch and Store only mark them as current.
//
// Owns the mirrors; borrows the rest. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "member/owned.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"

namespace cadre {

// Host copies of slices in device memory: pinned memory of the same size, and copies in both
// directions. On the host the slices are their own mirror, and nothing is copied.
//
// Owns the pinned memory; borrows device and slices.
class SliceMirror {
 public:
  SliceMirror(Device& device, std::vector<std::span<float>> slices)
      : device_(device), slices_(std::move(slices)) {
    if (device.is_host()) return;
    for (const std::span<float> slice : slices_) {
      offsets_.push_back(offsets_.back() + slice.size());
    }
    pinned_ = PinnedArray<float>(device, offsets_.back());
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
  // The mirrors of all slices, contiguous, and their offsets.
  PinnedArray<float> pinned_;
  std::vector<size_t> offsets_ = {0};
};

class OwnedSlices {
 public:
  // Requires: one optimizer per bucket. If memory is lacking, Device::status() has the error.
  OwnedSlices(Backend& kernels, ParameterStore& parameters,
              std::vector<SliceOptimizer>& optimizers);

  // The owned weights in the memory of the device, in parameter order.
  std::vector<Owned> OnDevice() const;
  // The owned weights, and state tensor `i` of the optimizer (model/optimizer_state.h), in
  // parameter order.
  std::span<const Owned> weights() const { return weights_; }
  std::vector<Owned> State(int i);
  int states() const { return optimizers_.empty() ? 0 : optimizers_.front().states(); }
  // The most that any element has made.
  int64_t updates() const { return optimizers_.empty() ? 0 : optimizers_.front().updates(); }
  // Those of the owned positions, in their order.
  std::vector<UpdateCount> UpdateCounts() const;
  // `counts`: in the order of the positions; the state of others is zero. Requires: no step is
  // recorded.
  void SetUpdates(std::span<const UpdateCount> counts);

  // Copies weights, and states if requested, to the host. Skips the weights if their mirror is
  // current. Blocks. Requires: no operation changes the slices.
  absl::Status Fetch(bool states);
  // Copies the states alone. As Fetch.
  absl::Status FetchStates();
  // Copies them from the host, and reports the change to the kernels. Blocks. Requires: as Fetch.
  absl::Status Store(bool states);
  // Sets whether the mirror of the weights is equal to the slices: false when a step begins, true
  // after a step that has copied them itself.
  void set_current(bool current) { current_ = current; }

  // Whether all weights are finite; computed where they are. Blocks. True after an error of the
  // device. Requires: as Fetch.
  bool AllFinite();
  // Additive digest of the weights; the digests of all ranks add up to the model's. Requires:
  // fetched.
  uint64_t Digest() const;

  const SliceMirror& mirror() const { return *mirror_; }
  // Allocates the mirrors of all states.
  void MakeStateMirrors();

 private:
  // `slice_of`: the values of a bucket's slice.
  std::vector<Owned> OwnedIn(const std::function<std::span<float>(int bucket)>& slice_of) const;
  std::vector<Owned> OwnedIn(const SliceMirror& mirror) const;
  SliceMirror& StateMirror(int i);
  absl::Status Copy(bool weights, bool states,
                    const std::function<void(SliceMirror&, size_t slice)>& copy);

  Backend& kernels_;
  Device& device_;
  ParameterStore& parameters_;
  std::vector<SliceOptimizer>& optimizers_;
  std::unique_ptr<SliceMirror> mirror_;
  // Created on first use: only checkpoints need them.
  std::vector<std::unique_ptr<SliceMirror>> state_mirrors_;
  std::vector<Owned> weights_;
  bool current_ = false;
};

}  // namespace cadre
