#include "kernels/cpu/cpu_kernels.h"

#include <glog/logging.h>

namespace cadre {

CpuKernels::CpuKernels(int threads)
    : threads_(threads),
      engine_(OrDie("engine", [] { return dnnl::engine(dnnl::engine::kind::cpu, 0); })),
      stream_(OrDie("stream", [this] { return dnnl::stream(engine_); })) {
  CHECK_GE(threads, 1);
}

std::unique_ptr<Kernels> MakeCpuKernels(int threads) {
  return std::make_unique<CpuKernels>(threads);
}

}  // namespace cadre
