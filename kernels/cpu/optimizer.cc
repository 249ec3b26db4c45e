// The optimisers' updates: one pass over all arrays with the arithmetic of
// kernels/optimizer_step.h, compiled without contraction.
#include <algorithm>
#include <array>
#include <span>
#include <variant>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/optimizer_step.h"

namespace cadre {
namespace {

template <typename Factors, size_t kStates>
CADRE_VECTOR_LOOP void UpdateLoop(Factors f, int64_t n, const float* __restrict g,
                                  float* __restrict w, std::array<float*, kStates> states) {
  for (int64_t i = 0; i < n; ++i) {
    float state[kStates];
    for (size_t s = 0; s < kStates; ++s) state[s] = states[s][i];
    UpdateElement(f, g[i], &w[i], state);
    for (size_t s = 0; s < kStates; ++s) states[s][i] = state[s];
  }
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

  void Update(const OptimizerStep& step, ConstFloatSpan g, FloatSpan w,
              std::span<const FloatSpan> states) {
    cpu_.bf16_weights.Changed(w);
    std::visit([&](const auto& rule) { UpdateAll(rule, g, w, states); }, step);
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
  template <typename Step>
  void UpdateAll(const Step& step, ConstFloatSpan g, FloatSpan w,
                 std::span<const FloatSpan> states) {
    const auto factors = FactorsOf<float>(step);
    const int64_t n = w.size();
    ForParts(cpu_.threads, n, [=](int64_t begin, int64_t end) {
      std::array<float*, Step::kStates> from_begin;
      for (size_t s = 0; s < from_begin.size(); ++s) from_begin[s] = states[s].data() + begin;
      UpdateLoop(factors, end - begin, g.data() + begin, w.data() + begin, from_begin);
    });
  }

  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<OptimizerKernels> MakeCpuOptimizer(CpuContext& cpu) {
  return std::make_unique<HostOptimizer<SpanCaller<CpuOptimizer>>>(cpu);
}

}  // namespace cadre
