#include "kernels/cpu/cpu_backend.h"

#include <glog/logging.h>

namespace cadre {

CpuContext::CpuContext(int threads)
    : threads(threads),
      engine(OrDie("engine", [] { return dnnl::engine(dnnl::engine::kind::cpu, 0); })),
      stream(OrDie("stream", [this] { return dnnl::stream(engine); })) {
  CHECK_GE(threads, 1);
}

CpuBackend::CpuBackend(int threads) : context_(threads) {
  families_ = {.memory = std::make_unique<CpuMemory>(context_),
               .dense = std::make_unique<CpuDense>(context_),
               .window = std::make_unique<CpuWindow>(context_),
               .norm = std::make_unique<CpuNorm>(context_),
               .pointwise = std::make_unique<CpuPointwise>(context_),
               .optimizer = std::make_unique<CpuOptimizer>(context_),
               .slices = nullptr};
}

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace cadre
