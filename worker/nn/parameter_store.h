// A rank's parameters and gradients. Each bucket has one contiguous buffer for parameters and one
// for gradients, with the local shards in the order of plan/ownership.h, so that a bucket can be
// exchanged as a whole.
//
// Buffers are fp32 in device memory: spans are for kernels, copies and collectives. Code that
// writes weights other than by the kernels' updates must call WeightsChanged; the store does so for
// the initial values.
//
// Owns the buffers; borrows the kernels, which must outlive it. Thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "kernels/backend.h"
#include "model/parameter_index.h"
#include "plan/ownership.h"
#include "worker/nn/layer.h"

namespace cadre {

class ParameterStore {
 public:
  // The weights are those of version 0 (model/initial_value.h). `accumulates`: the store also has
  // buffers for the sums over several passes. If memory is lacking, Device::status() has the error,
  // which names the layer with the largest part of the bucket.
  ParameterStore(const ParameterIndex& index, std::vector<BucketOwnership> buckets, uint64_t seed,
                 Backend& kernels, bool accumulates = false);

  int buckets() const { return std::ssize(buckets_); }
  const BucketOwnership& ownership(int bucket) const { return at(bucket).ownership; }
  std::span<float> weights(int bucket) { return at(bucket).weights.span(); }
  // Gradients of the last pass.
  std::span<float> gradients(int bucket) { return at(bucket).gradients.span(); }
  // Sums over passes; empty unless the store accumulates.
  std::span<float> sums(int bucket) { return at(bucket).sums.span(); }

  // This rank's shards of a layer's parameters, in the layer's order.
  std::vector<LocalTensor> OfLayer(const ParameterIndex& index, int layer);

  int64_t weight_bytes() const;
  int64_t gradient_bytes() const;

 private:
  struct Buffers {
    BucketOwnership ownership;
    DeviceArray<float> weights;
    DeviceArray<float> gradients;
    DeviceArray<float> sums;
  };
  Buffers& at(int bucket) { return buckets_[bucket]; }
  const Buffers& at(int bucket) const { return buckets_[bucket]; }

  std::vector<Buffers> buckets_;
};

}  // namespace cadre
