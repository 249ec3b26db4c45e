// bf16 copies of fp32 parameters: of stretches of memory that were announced once, found by where
// the parameters lie.
//
// A copy is as new as the last Renew of its part, or the last update that wrote through Find's
// pointer. Copies of memory that now holds something else do no harm but the bytes they take:
// whoever puts parameters there announces them, and Clear drops all. Owns the copies; borrows the
// device. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "tensor/values.h"

namespace cadre {

class WeightCopies {
 public:
  explicit WeightCopies(CudaDevice& device) : device_(device) {}

  // Casts all of [weights] on the current stream. The first time, a copy is made, which replaces
  // those that it overlaps in part; not while recording.
  void Renew(std::span<const float> weights);
  // The copy of these, or none.
  Values Find(std::span<const float> weights) const;
  // Requires: nothing is under way.
  void Clear();

 private:
  struct Copy {
    size_t size = 0;
    DeviceArray<uint16_t> values;
  };

  void Make(std::span<const float> weights);

  CudaDevice& device_;
  // By where the parameters begin; they do not overlap.
  std::map<const float*, Copy> copies_;
  // Replaced, but perhaps still in use.
  std::vector<DeviceArray<uint16_t>> replaced_;
};

}  // namespace cadre
