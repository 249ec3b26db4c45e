// The optimisers' updates, one pass over all their arrays. Built without fusing products into sums:
// multiplying, adding, dividing and taking roots round alike on every processor then, so that ranks
// which update the same weights on different machines keep the same bits.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

CADRE_VECTOR_LOOP void HeavyBall(SgdStep step, int64_t n, const float* __restrict g,
                                 float* __restrict w, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    const float decayed = step.gradient_scale * g[i] + step.weight_decay * w[i];
    const float velocity = step.momentum * v[i] + decayed;
    v[i] = velocity;
    w[i] -= step.rate * velocity;
  }
}

CADRE_VECTOR_LOOP void Nesterov(SgdStep step, int64_t n, const float* __restrict g,
                                float* __restrict w, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    const float decayed = step.gradient_scale * g[i] + step.weight_decay * w[i];
    const float velocity = step.momentum * v[i] + decayed;
    v[i] = velocity;
    w[i] -= step.rate * (decayed + step.momentum * velocity);
  }
}

// AdamWStep with its corrections folded into factors.
struct AdamFactors {
  float gradient_scale, beta1, beta2, rest1, rest2, keep, rate, root, epsilon;
};

CADRE_VECTOR_LOOP void Adam(AdamFactors f, int64_t n, const float* __restrict g,
                            float* __restrict w, float* __restrict m, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = f.gradient_scale * g[i];
    const float first = f.beta1 * m[i] + f.rest1 * gradient;
    const float second = f.beta2 * v[i] + f.rest2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    w[i] = f.keep * w[i] - f.rate * first / (__builtin_sqrtf(second) * f.root + f.epsilon);
  }
}

CADRE_VECTOR_LOOP double Squares(int64_t n, const float* x) {
  constexpr int kChains = 4;  // additions that wait for each other only within their chain
  Doubles sums[kChains] = {};
  int64_t i = 0;
  for (; i + 8 * kChains <= n; i += 8 * kChains) {
    for (int chain = 0; chain < kChains; ++chain) {
      const auto wide = __builtin_convertvector(Load<HalfLanes>(x + i + 8 * chain), Doubles);
      sums[chain] += wide * wide;
    }
  }
  double total = 0;
  for (; i < n; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int chain = 1; chain < kChains; ++chain) sums[0] += sums[chain];
  for (int lane = 0; lane < 8; ++lane) total += sums[0][lane];
  return total;
}

}  // namespace

void CpuKernels::Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
                     std::span<float> v) {
  const auto n = static_cast<int64_t>(w.size());
  CheckSize("g", g.size(), n);
  CheckSize("v", v.size(), n);
  const auto loop = step.nesterov ? Nesterov : HeavyBall;
  ForParts(threads_, n, [=](int64_t begin, int64_t end) {
    loop(step, end - begin, g.data() + begin, w.data() + begin, v.data() + begin);
  });
}

void CpuKernels::AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
                       std::span<float> m, std::span<float> v) {
  const auto n = static_cast<int64_t>(w.size());
  CheckSize("g", g.size(), n);
  CheckSize("m", m.size(), n);
  CheckSize("v", v.size(), n);
  const AdamFactors factors{
      .gradient_scale = step.gradient_scale,
      .beta1 = step.beta1,
      .beta2 = step.beta2,
      .rest1 = 1 - step.beta1,
      .rest2 = 1 - step.beta2,
      .keep = 1 - step.rate * step.weight_decay,
      .rate = static_cast<float>(step.rate / step.correction1),
      .root = static_cast<float>(1 / std::sqrt(step.correction2)),
      .epsilon = step.epsilon,
  };
  ForParts(threads_, n, [=](int64_t begin, int64_t end) {
    Adam(factors, end - begin, g.data() + begin, w.data() + begin, m.data() + begin,
         v.data() + begin);
  });
}

double CpuKernels::SumOfSquares(std::span<const float> x) {
  // Sums of pieces, added in the order of the pieces: the same bits for any number of threads.
  constexpr int64_t kPiece = 1 << 14;
  const auto n = static_cast<int64_t>(x.size());
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  std::vector<double> sums(static_cast<size_t>(pieces));
  ForParts(threads_, pieces, kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sums[static_cast<size_t>(i)] =
          Squares(std::min(kPiece, n - i * kPiece), x.data() + i * kPiece);
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace cadre
