// The slices that a rank owns (weights and optimizer states) as the host sees them.
//
// On a device they lie in its memory, and the host has a mirror of each: Fetch copies the slices to
// the mirrors, Store copies them back. On the host the slices are their own mirrors, and both only
// mark them as current.
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
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/train/owned.h"
#include "worker/train/slice_mirror.h"

namespace cadre {

class OwnedSlices {
 public:
  // Requires: one optimizer per bucket. Lack of memory is the device's error (Device::status()).
  OwnedSlices(Backend& kernels, ParameterStore& parameters,
              std::vector<SliceOptimizer>& optimizers);

  // The owned weights, and state tensor `i` of the optimizer (model/optimizer_state.h), in
  // parameter order.
  std::span<const Owned> weights() const { return weights_; }
  std::vector<Owned> State(int i);
  int states() const { return optimizers_.empty() ? 0 : optimizers_.front().states(); }
  int64_t updates() const { return optimizers_.empty() ? 0 : optimizers_.front().updates(); }
  void set_updates(int64_t updates);

  // Copies weights, and states if requested, to the host. Skips the weights' copy if they are
  // current. Blocks. Requires: no operation changes the slices.
  absl::Status Fetch(bool states);
  // Copies them from the host, and reports the change to the kernels. Blocks. Requires: as Fetch.
  absl::Status Store(bool states);
  // Whether the mirror of the weights is equal to the slices: false when a step begins; true after
  // a step that has copied them itself.
  void set_current(bool current) { current_ = current; }

  // Additive digest of the weights; the digests of all ranks add up to the model's. Requires:
  // fetched.
  uint64_t Digest() const;

  const SliceMirror& mirror() const { return *mirror_; }
  // Allocates the mirrors of all states.
  void MakeStateMirrors();

 private:
  std::vector<Owned> OwnedIn(const SliceMirror& mirror) const;
  SliceMirror& StateMirror(int i);
  absl::Status Copy(bool states, const std::function<void(SliceMirror&, size_t slice)>& copy);

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
