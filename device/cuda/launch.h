// How kernels are launched: on the current stream of their device, through its table of functions,
// so that a test can run them on the host.
//
// Kernels use the subset of CUDA C++ that both compilers support: threadIdx and the like,
// __shared__, __syncthreads, warp shuffles with a full mask, atomicAdd on float, double and int.
// The emulated build (CADRE_CUDA_EMULATED) compiles the same files with the host's compiler.
#pragma once

#include <cstddef>
#include <functional>
#include <tuple>
#include <utility>

#include "device/cuda/cuda_device.h"

namespace cadre {

struct LaunchShape {
  dim3 grid = dim3(1);
  dim3 block = dim3(1);
  size_t shared_bytes = 0;
};

// One thread per element, at most a few blocks per processor: kernels stride over the rest.
inline LaunchShape Strided(const CudaDevice& device, int64_t elements, int threads = 256,
                           int blocks_per_processor = 8) {
  const int64_t blocks = (elements + threads - 1) / threads;
  const int64_t most = int64_t{device.processors()} * blocks_per_processor;
  return {.grid = dim3(static_cast<unsigned>(blocks < 1      ? 1
                                             : blocks < most ? blocks
                                                             : most)),
          .block = dim3(static_cast<unsigned>(threads))};
}

template <typename... Parameters, typename... Arguments>
void Launch(CudaDevice& device, const char* name, void (*kernel)(Parameters...),
            const LaunchShape& shape, Arguments&&... arguments) {
  if (device.failed()) return;
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  void* pointers[sizeof...(Parameters) + 1] = {};
  std::apply(
      [&pointers](auto&... value) {
        size_t i = 0;
        ((pointers[i++] = &value), ...);
      },
      values);
#ifdef CADRE_CUDA_EMULATED
  const std::function<void()> on_host = [kernel, values] { std::apply(kernel, values); };
#else
  const std::function<void()> on_host;
#endif
  device.Check(device.api().launch(reinterpret_cast<const void*>(kernel), shape.grid, shape.block,
                                   pointers, shape.shared_bytes, device.stream(), on_host),
               name);
}

}  // namespace cadre
