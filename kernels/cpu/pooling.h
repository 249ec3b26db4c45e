// Pooling, a part of WindowKernels. pooling.cc explains the loops.
//
// The same extents and data give the same bits for any number of threads. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace cadre {

// The type of a pass is that of its outputs: inputs without elements may have any.
class CpuPooling {
 public:
  void PoolingForward(const PoolingDims& dims, ConstValues x, Values y, std::span<int32_t> argmax);
  void PoolingBackward(const PoolingDims& dims, ConstValues dy, std::span<const int32_t> argmax,
                       Values dx);
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstValues x, Values y);
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstValues dy, Values dx);

 protected:
  explicit CpuPooling(int threads) : threads_(threads) {}

 private:
  const int threads_;
};

}  // namespace cadre
