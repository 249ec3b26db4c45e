// A rank's parameters and their gradients: one buffer of each per bucket, in which the local shards
// lie one behind the other (spec/ownership.h), so that a bucket travels as one piece.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/ownership.h"
#include "spec/parameter_index.h"
#include "tensor/tensor.h"
#include "worker/nn/layer.h"

namespace cadre {

class ParameterStore {
 public:
  // Weights are those of version 0 (spec/initial_value.h).
  ParameterStore(const ParameterIndex& index, std::vector<BucketOwnership> buckets, uint64_t seed);

  int buckets() const { return static_cast<int>(buckets_.size()); }
  const BucketOwnership& ownership(int bucket) const { return at(bucket).ownership; }
  std::span<float> weights(int bucket) { return at(bucket).weights.span(); }
  std::span<float> gradients(int bucket) { return at(bucket).gradients.span(); }

  // Where the parameters of a layer are here. Empty spans for a layer without.
  LayerParameters OfLayer(const ParameterIndex& index, int layer);

 private:
  struct Buffers {
    BucketOwnership ownership;
    Tensor weights;
    Tensor gradients;
  };
  Buffers& at(int bucket) { return buckets_[static_cast<size_t>(bucket)]; }
  const Buffers& at(int bucket) const { return buckets_[static_cast<size_t>(bucket)]; }

  std::vector<Buffers> buckets_;
};

}  // namespace cadre
