// The class CpuBackend, which makes the families. They share one engine and one stream of oneDNN.
#include "kernels/cpu/cpu_backend.h"

#include <glog/logging.h>

namespace cadre {

CpuContext::CpuContext(int threads)
    : threads(threads),
      engine(OrDie("engine", [] { return dnnl::engine(dnnl::engine::kind::cpu, 0); })),
      stream(OrDie("stream", [this] { return dnnl::stream(engine); })) {
  CHECK_GE(threads, 1);
}

namespace {

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(int threads) : context_(threads) {
    families_ = {.memory = MakeCpuMemory(context_),
                 .dense = MakeCpuDense(context_),
                 .window = MakeCpuWindow(context_),
                 .norm = MakeCpuNorm(context_),
                 .pointwise = MakeCpuPointwise(context_),
                 .optimizer = MakeCpuOptimizer(context_),
                 .slices = nullptr};
  }
  std::unique_ptr<Backend> OneThread() const override { return MakeCpuBackend(1); }

 private:
  CpuContext context_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace cadre
