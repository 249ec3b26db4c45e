#include <cuda_bf16.h>

#include <algorithm>
#include <functional>

#include "tests/comm/transport/nccl/sum_ranks.h"

namespace cadre::in_process {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMaxBlocks = 1024;

struct Inputs {
  const char* at[kMaxSummands];
  int count;
};

__device__ inline float Widen(__nv_bfloat16 value) { return __bfloat162float(value); }
template <typename T>
__device__ inline T Widen(T value) {
  return value;
}
__device__ inline void Narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }
template <typename T>
__device__ inline void Narrow(T value, T* to) {
  *to = value;
}

template <typename T, typename Wide>
__global__ void __launch_bounds__(kThreads)
    AddInOrder(Inputs inputs, size_t offset, size_t count, T* to) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    Wide sum = Widen(reinterpret_cast<const T*>(inputs.at[0])[offset + i]);
    for (int rank = 1; rank < inputs.count; ++rank) {
      sum += Widen(reinterpret_cast<const T*>(inputs.at[rank])[offset + i]);
    }
    Narrow(sum, to + i);
  }
}

template <typename T, typename Wide = T>
cudaError_t LaunchSum(const CudaApi& cuda, Inputs inputs, size_t offset, size_t count, void* into,
                      cudaStream_t stream) {
  T* to = static_cast<T*>(into);
  void* arguments[] = {&inputs, &offset, &count, &to};
  std::function<void()> on_host;
#ifdef CADRE_CUDA_EMULATED
  on_host = [=] { AddInOrder<T, Wide>(inputs, offset, count, to); };
#endif
  const unsigned blocks = std::min((count + kThreads - 1) / kThreads, kMaxBlocks);
  return cuda.launch(reinterpret_cast<const void*>(&AddInOrder<T, Wide>), dim3(blocks),
                     dim3(kThreads), arguments, stream, on_host);
}

}  // namespace

cudaError_t SumRanks(const CudaApi& cuda, SumType type, std::span<const char* const> inputs,
                     size_t offset, size_t count, void* to, cudaStream_t stream) {
  Inputs all = {.at = {}, .count = static_cast<int>(inputs.size())};
  std::copy(inputs.begin(), inputs.end(), all.at);
  switch (type) {
    case SumType::kUint8:
      return LaunchSum<uint8_t>(cuda, all, offset, count, to, stream);
    case SumType::kBf16:
      return LaunchSum<__nv_bfloat16, float>(cuda, all, offset, count, to, stream);
    case SumType::kUint64:
      return LaunchSum<uint64_t>(cuda, all, offset, count, to, stream);
    case SumType::kFp32:
      return LaunchSum<float>(cuda, all, offset, count, to, stream);
    case SumType::kFp64:
      return LaunchSum<double>(cuda, all, offset, count, to, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace cadre::in_process
