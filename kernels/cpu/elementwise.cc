// Activations, dropout and addition. The transcendental functions are polynomials of our own
// (vector_loops.h) because a call of libm per element would prevent vectorisation.
//
// Dropout draws from a counter-based generator (Salmon et al. 2011, "Parallel Random Numbers: As
// Easy as 1, 2, 3"): an element's fate is a function of the seed, the layer and its number in the
// run, so that forward and backward, every division of the batch and every device agree without
// storing a mask.
#include <cmath>

#include "base/random.h"
#include "kernels/cpu/cpu_backend.h"
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
    // Loaded unconditionally: a conditional load would prevent vectorisation.
    const float passed = dy[i];
    dx[i] = y[i] > 0 ? passed : 0;
  }
}

CADRE_VECTOR_LOOP void GeluBackward(int64_t n, const float* x, const float* dy, float* dx) {
  constexpr float kDensity = 0.398942280F;  // 1 / sqrt(2 pi)
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Normal normal = NormalOf(x[i]);
    dx[i] = dy[i] * (normal.below + x[i] * normal.density * kDensity);
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

void CpuPointwise::ActivationForward(Activation kind, ConstValues x_values, Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  const auto n = static_cast<int64_t>(x.size());
  CheckSize("y", y.size(), n);
  ForParts(cpu_.threads, n, [loop = ForwardOf(kind), x, y](int64_t begin, int64_t end) {
    loop(end - begin, x.data() + begin, y.data() + begin);
  });
}

void CpuPointwise::ActivationBackward(Activation kind, ConstValues seen_values,
                                      ConstValues dy_values, Values dx_values) {
  const auto seen = seen_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  const auto n = static_cast<int64_t>(seen.size());
  CheckSize("dy", dy.size(), n);
  CheckSize("dx", dx.size(), n);
  ForParts(cpu_.threads, n, [loop = BackwardOf(kind), seen, dy, dx](int64_t begin, int64_t end) {
    loop(end - begin, seen.data() + begin, dy.data() + begin, dx.data() + begin);
  });
}

void CpuPointwise::Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y_values) {
  const auto y = y_values.floats();
  const auto n = static_cast<int64_t>(x.size());
  CheckSize("y", y.size(), n);
  const RandomSequence random(key.seed, RandomStream::kDropout, key.layer);
  // A uniform number is 24 bits over 2^24, and rate * 2^24 is exact: comparing whole numbers is the
  // same as comparing the fractions.
  const auto least = static_cast<uint32_t>(std::ceil(key.rate * 0x1.0p24F));
  const float scale = 1.0F / (1.0F - key.rate);
  ForParts(cpu_.threads, n, [=](int64_t begin, int64_t end) {
    Drop(end - begin, random, first + static_cast<uint64_t>(begin), least, scale,
         x.floats().data() + begin, y.data() + begin);
  });
}

void CpuPointwise::Add(ConstValues x_values, Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  const auto n = static_cast<int64_t>(x.size());
  CheckSize("y", y.size(), n);
  ForParts(cpu_.threads, n, [x, y](int64_t begin, int64_t end) {
    AddTo(end - begin, x.data() + begin, y.data() + begin);
  });
}

}  // namespace cadre
