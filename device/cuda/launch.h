// Launches kernels on the current stream of a device, through the device's table of CUDA functions,
// so that tests can run them on the host.
//
// Kernels use a subset of CUDA C++ that the emulated build supports, too: threadIdx and the like,
// static __shared__ memory, __syncthreads, warp shuffles with a full mask, atomicAdd on float,
// double and int. The emulated build (CADRE_CUDA_EMULATED) compiles the same files with the host's
// compiler (tests/emulator/cuda_on_host.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <tuple>
#include <utility>

#include "device/cuda/cuda_streams.h"

namespace cadre {

struct LaunchShape {
  dim3 grid = dim3(1);
  dim3 block = dim3(1);
};

// The shape for a kernel whose threads process elements i, i + threads of the grid, ...: one thread
// per element, but at most a few blocks per processor.
inline LaunchShape Strided(const CudaStreams& device, int64_t elements, int threads = 256,
                           int blocks_per_processor = 8) {
  const int64_t blocks = (elements + threads - 1) / threads;
  const int64_t max_blocks = int64_t{device.processors()} * blocks_per_processor;
  return {.grid = dim3(std::clamp<int64_t>(blocks, 1, max_blocks)), .block = dim3(threads)};
}

template <typename... Parameters, typename... Arguments>
void Launch(CudaStreams& device, const char* name, void (*kernel)(Parameters...),
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
  device.Enqueued(device.api().launch(reinterpret_cast<const void*>(kernel), shape.grid,
                                      shape.block, pointers, device.stream(), on_host),
                  name);
}

}  // namespace cadre
