// A rank's parameters and their gradients: one buffer of each per bucket, in which the local shards
// lie one behind the other (spec/ownership.h), so that a bucket travels as one piece.
//
// Buffers are fp32, in the memory of the kernels' device: spans are for kernels, copies and
// collectives. Whoever writes weights by other means than the kernels' updates tells the kernels
// (WeightsChanged); the store does so for the initial values.
//
// Owns the buffers; borrows the kernels, which must outlive it. Thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "kernels/kernels.h"
#include "spec/ownership.h"
#include "spec/parameter_index.h"
#include "worker/nn/layer.h"

namespace cadre {

class ParameterStore {
 public:
  // Weights are those of version 0 (spec/initial_value.h). `accumulates`: gradients of several
  // passes are to be added up. Lack of memory is the device's error (Device::status()), which names
  // the layer that has most of the bucket.
  ParameterStore(const ParameterIndex& index, std::vector<BucketOwnership> buckets, uint64_t seed,
                 Kernels& kernels, bool accumulates = false);

  int buckets() const { return static_cast<int>(buckets_.size()); }
  const BucketOwnership& ownership(int bucket) const { return at(bucket).ownership; }
  std::span<float> weights(int bucket) { return at(bucket).weights.span(); }
  // What the last pass wrote.
  std::span<float> gradients(int bucket) { return at(bucket).gradients.span(); }
  // Where passes are added up; empty unless the store accumulates.
  std::span<float> sums(int bucket) { return at(bucket).sums.span(); }

  // Where the parameters of a layer are here, in the layer's order.
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
  Buffers& at(int bucket) { return buckets_[static_cast<size_t>(bucket)]; }
  const Buffers& at(int bucket) const { return buckets_[static_cast<size_t>(bucket)]; }

  std::vector<Buffers> buckets_;
};

}  // namespace cadre
