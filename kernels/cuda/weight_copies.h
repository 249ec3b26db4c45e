// bf16 copies of fp32 parameters. Renew makes the copy of an interval of memory; Find looks it up
// by the parameters' address.
//
// A copy has the values of the last Renew, or of the last update that wrote through Find's pointer.
// A copy of memory that no longer holds parameters wastes its bytes but does no harm, since Renew
// is called again for parameters that are placed there. Clear drops all copies. Owns the copies;
// borrows the device. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "tensor/values.h"

namespace cadre {

// y = x, fp32 to bf16 or back (cuda_context.cu).
void LaunchConvert(CudaDevice& device, ConstValues x, Values y);

class WeightCopies {
 public:
  explicit WeightCopies(CudaDevice& device) : device_(device) {}

  // Converts all of [weights] on the current stream. The first call makes the copy, which replaces
  // copies that it overlaps in part. Requires for the first call: no graph is being captured.
  void Renew(std::span<const float> weights);
  // The copy of these parameters; empty if there is none.
  Values Find(std::span<const float> weights) const;
  // Requires: no work is pending.
  void Clear();

 private:
  struct Copy {
    size_t size = 0;
    DeviceArray<uint16_t> values;
  };

  void Make(std::span<const float> weights);

  CudaDevice& device_;
  // By the address of the first parameter. Copies do not overlap.
  std::map<const float*, Copy> copies_;
  // Replaced copies, which pending work may still use.
  std::vector<DeviceArray<uint16_t>> replaced_;
};

}  // namespace cadre
