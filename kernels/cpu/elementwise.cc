// Element by element.
#include <cmath>

#include "base/random.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// In all loops x and y (dy and dx) may be the same: element i is read before it is written, and
// `omp simd` says that nothing else lies between.

CADRE_VECTOR_LOOP void Relu(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? 0 : x[i];
}

CADRE_VECTOR_LOOP void Gelu(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * NormalOf(x[i]).below;
}

CADRE_VECTOR_LOOP void Sigmoid(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = SigmoidOf(x[i]);
}

CADRE_VECTOR_LOOP void Tanh(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = TanhOf(x[i]);
}

CADRE_VECTOR_LOOP void ReluBackward(int64_t n, const float* y, const float* dy, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    // Read whether needed or not: a load under a condition would stay scalar.
    const float passed = dy[i];
    dx[i] = y[i] > 0 ? passed : 0;
  }
}

CADRE_VECTOR_LOOP void GeluBackward(int64_t n, const float* x, const float* dy, float* dx) {
  constexpr float kDensity = 0.398942280F;  // 1 / sqrt(2 pi)
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Normal normal = NormalOf(x[i]);
    dx[i] = dy[i] * (normal.below + x[i] * normal.bell * kDensity);
  }
}

CADRE_VECTOR_LOOP void SigmoidBackward(int64_t n, const float* y, const float* dy, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * y[i] * (1 - y[i]);
}

CADRE_VECTOR_LOOP void TanhBackward(int64_t n, const float* y, const float* dy, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (1 - y[i] * y[i]);
}

CADRE_VECTOR_LOOP void AddTo(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

// Keeps an element where its 24 random bits are at least `least`.
CADRE_VECTOR_LOOP void Drop(int64_t n, RandomSequence random, uint64_t first, uint32_t least,
                            float scale, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float kept = x[i] * scale;
    const auto bits = static_cast<uint32_t>(random.Bits(first + static_cast<uint64_t>(i)));
    y[i] = (bits >> 8) >= least ? kept : 0;
  }
}

using Loop = void (*)(int64_t n, const float* x, float* y);
using BackwardLoop = void (*)(int64_t n, const float* seen, const float* dy, float* dx);

Loop ForwardOf(Activation kind) {
  switch (kind) {
    case Activation::kGelu:
      return Gelu;
    case Activation::kSigmoid:
      return Sigmoid;
    case Activation::kTanh:
      return Tanh;
    case Activation::kRelu:
      break;
  }
  return Relu;
}

BackwardLoop BackwardOf(Activation kind) {
  switch (kind) {
    case Activation::kGelu:
      return GeluBackward;
    case Activation::kSigmoid:
      return SigmoidBackward;
    case Activation::kTanh:
      return TanhBackward;
    case Activation::kRelu:
      break;
  }
  return ReluBackward;
}

}  // namespace

void CpuKernels::ActivationForward(Activation kind, std::span<const float> x, std::span<float> y) {
  const auto n = static_cast<int64_t>(x.size());
  CheckSize("y", y.size(), n);
  ForParts(threads_, n, [loop = ForwardOf(kind), x, y](int64_t begin, int64_t end) {
    loop(end - begin, x.data() + begin, y.data() + begin);
  });
}

void CpuKernels::ActivationBackward(Activation kind, std::span<const float> seen,
                                    std::span<const float> dy, std::span<float> dx) {
  const auto n = static_cast<int64_t>(seen.size());
  CheckSize("dy", dy.size(), n);
  CheckSize("dx", dx.size(), n);
  ForParts(threads_, n, [loop = BackwardOf(kind), seen, dy, dx](int64_t begin, int64_t end) {
    loop(end - begin, seen.data() + begin, dy.data() + begin, dx.data() + begin);
  });
}

void CpuKernels::Dropout(const DropoutKey& key, uint64_t first, std::span<const float> x,
                         std::span<float> y) {
  const auto n = static_cast<int64_t>(x.size());
  CheckSize("y", y.size(), n);
  const RandomSequence random(key.seed, RandomStream::kDropout, key.layer);
  // A uniform number is 24 bits over 2^24, and rate * 2^24 is exact: comparing whole numbers is the
  // same as comparing the fractions.
  const auto least = static_cast<uint32_t>(std::ceil(key.rate * 0x1.0p24F));
  const float scale = 1.0F / (1.0F - key.rate);
  ForParts(threads_, n, [=](int64_t begin, int64_t end) {
    Drop(end - begin, random, first + static_cast<uint64_t>(begin), least, scale, x.data() + begin,
         y.data() + begin);
  });
}

void CpuKernels::Add(std::span<const float> x, std::span<float> y) {
  const auto n = static_cast<int64_t>(x.size());
  CheckSize("y", y.size(), n);
  ForParts(threads_, n, [x, y](int64_t begin, int64_t end) {
    AddTo(end - begin, x.data() + begin, y.data() + begin);
  });
}

}  // namespace cadre
