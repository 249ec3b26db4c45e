// Element by element. These loops wait for memory, so baseline vector instructions are enough.
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/threads.h"
#include "kernels/extents.h"

namespace cadre {

void CpuKernels::ReluForward(std::span<const float> x, std::span<float> y) {
  const auto n = static_cast<int64_t>(x.size());
  CheckSize("y", y.size(), n);
  ForParts(threads_, n, [in = x.data(), out = y.data()](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = in[i] < 0 ? 0 : in[i];
  });
}

void CpuKernels::ReluBackward(std::span<const float> y, std::span<const float> dy,
                              std::span<float> dx) {
  const auto n = static_cast<int64_t>(y.size());
  CheckSize("dy", dy.size(), n);
  CheckSize("dx", dx.size(), n);
  ForParts(threads_, n,
           [out = y.data(), d = dy.data(), in = dx.data()](int64_t begin, int64_t end) {
             for (int64_t i = begin; i < end; ++i) {
               // Read whether needed or not: a load under a condition would stay scalar.
               const float passed = d[i];
               in[i] = out[i] > 0 ? passed : 0;
             }
           });
}

void CpuKernels::Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
                     std::span<float> v) {
  const auto n = static_cast<int64_t>(w.size());
  CheckSize("g", g.size(), n);
  CheckSize("v", v.size(), n);
  ForParts(threads_, n, [step, g, w, v](int64_t begin, int64_t end) {
    const float* __restrict gradient = g.data();
    float* __restrict weight = w.data();
    float* __restrict velocity = v.data();
    for (int64_t i = begin; i < end; ++i) {
      const float decayed = gradient[i] + step.weight_decay * weight[i];
      velocity[i] = step.momentum * velocity[i] + decayed;
      weight[i] -= step.rate * velocity[i];
    }
  });
}

}  // namespace cadre
