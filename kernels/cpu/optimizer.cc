// The optimisers' updates: one pass over all arrays with the arithmetic of
// kernels/optimizer_step.h, compiled without contraction.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/optimizer_step.h"

namespace cadre {
namespace {

template <bool kNesterov>
CADRE_INLINE void SgdLoop(SgdFactors<float> f, int64_t n, const float* __restrict g,
                          float* __restrict w, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) SgdElement<kNesterov>(f, g[i], &w[i], &v[i]);
}

CADRE_VECTOR_LOOP void HeavyBall(SgdFactors<float> f, int64_t n, const float* __restrict g,
                                 float* __restrict w, float* __restrict v) {
  SgdLoop<false>(f, n, g, w, v);
}

CADRE_VECTOR_LOOP void Nesterov(SgdFactors<float> f, int64_t n, const float* __restrict g,
                                float* __restrict w, float* __restrict v) {
  SgdLoop<true>(f, n, g, w, v);
}

CADRE_VECTOR_LOOP void Adam(AdamFactors<float> f, int64_t n, const float* __restrict g,
                            float* __restrict w, float* __restrict m, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) AdamElement(f, g[i], &w[i], &m[i], &v[i]);
}

CADRE_VECTOR_LOOP double Squares(int64_t n, const float* x) {
  constexpr int kChains = 4;  // independent sums, which hide the latency of an addition
  Doubles sums[kChains] = {};
  int64_t i = 0;
  for (; i + 8 * kChains <= n; i += 8 * kChains) {
    for (int chain = 0; chain < kChains; ++chain) {
      const auto wide = __builtin_convertvector(Load<HalfVector>(x + i + 8 * chain), Doubles);
      sums[chain] += wide * wide;
    }
  }
  double total = 0;
  for (; i < n; ++i) {
    const double value = x[i];
    total += value * value;
  }
  for (int chain = 1; chain < kChains; ++chain) sums[0] += sums[chain];
  for (int lane = 0; lane < 8; ++lane) total += sums[0][lane];
  return total;
}

class CpuOptimizer {
 public:
  explicit CpuOptimizer(CpuContext& cpu) : cpu_(cpu) {}

  void Sgd(const SgdStep& step, ConstFloatSpan g, FloatSpan w, FloatSpan v) {
    cpu_.bf16_weights.Changed(w);
    const int64_t n = w.size();
    const auto loop = step.nesterov ? Nesterov : HeavyBall;
    ForParts(cpu_.threads, n, [=, factors = SgdFactorsOf<float>(step)](int64_t begin, int64_t end) {
      loop(factors, end - begin, g.data() + begin, w.data() + begin, v.data() + begin);
    });
  }

  void AdamW(const AdamWStep& step, ConstFloatSpan g, FloatSpan w, FloatSpan m, FloatSpan v) {
    cpu_.bf16_weights.Changed(w);
    const int64_t n = w.size();
    const auto factors = AdamFactorsOf<float>(step);
    ForParts(cpu_.threads, n, [=](int64_t begin, int64_t end) {
      Adam(factors, end - begin, g.data() + begin, w.data() + begin, m.data() + begin,
           v.data() + begin);
    });
  }

  double SumOfSquares(ConstFloatSpan x) {
    // Sums of chunks are added in the order of the chunks, so that any number of threads gives the
    // same bits.
    constexpr int64_t kChunk = 1 << 14;
    const int64_t n = x.size();
    const int64_t chunks = (n + kChunk - 1) / kChunk;
    std::vector<double> sums(chunks);
    ForParts(cpu_.threads, chunks, kChunk, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        sums[i] = Squares(std::min(kChunk, n - i * kChunk), x.data() + i * kChunk);
      }
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  }

 private:
  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<OptimizerKernels> MakeCpuOptimizer(CpuContext& cpu) {
  return std::make_unique<HostOptimizer<SpanCaller<CpuOptimizer>>>(cpu);
}

}  // namespace cadre
