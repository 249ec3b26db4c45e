// Activations, dropout and addition. Transcendental functions are computed by our own polynomials
// (vector_loops.h), because a call of libm per element would prevent vectorisation.
//
// Dropout draws from a counter-based generator (Salmon et al. 2011, "Parallel Random Numbers: As
// Easy as 1, 2, 3"): whether an element is dropped depends only on the seed, the layer and the
// element's number in the run, so forward and backward, every division of the batch and every
// device agree without storing a mask.
//
// Softmax cross-entropy with label smoothing (Szegedy et al. 2016), row by row.
//
// The logits are shifted by their maximum before the exponential, so that none overflows and one
// of them is 1. The loss is log(sum) + max - x[label], never log of a probability, which would be
// infinite once it underflows. Sums are taken in double. The gradient is scale * (softmax -
// target), whose value at the label is computed in double, because it is a difference of nearly
// equal numbers when the predicted probability of the label is near 1.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {
namespace {

// In all loops x and y (dy and dx) may be the same: element i is read before it is written, and
// `omp simd` declares that the iterations are independent.

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
    // The load is unconditional, because a conditional one would prevent vectorisation.
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

// The approximation of the normal distribution function by tanh, as a sigmoid: (1 + tanh(u)) / 2 =
// 1 / (1 + e^(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kTwiceRoot = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

CADRE_INLINE float ApproximatelyBelow(float x) {
  return SigmoidOf(kTwiceRoot * x * (1.0F + kCubic * x * x));
}

CADRE_VECTOR_LOOP void ApproximateGelu(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * ApproximatelyBelow(x[i]);
}

CADRE_VECTOR_LOOP void ApproximateGeluBackward(int64_t n, const float* x, const float* dy,
                                               float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float below = ApproximatelyBelow(x[i]);
    const float slope = kTwiceRoot * (1.0F + 3.0F * kCubic * x[i] * x[i]);
    dx[i] = dy[i] * (below + x[i] * below * (1.0F - below) * slope);
  }
}

// min(max(x, 0), 6), and NaN for NaN.
CADRE_INLINE float ClampToSix(float x) {
  const float above = x < 0 ? 0 : x;
  return above > 6 ? 6 : above;
}

CADRE_VECTOR_LOOP void Relu6(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = ClampToSix(x[i]);
}

CADRE_VECTOR_LOOP void Relu6Backward(int64_t n, const float* y, const float* dy, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float passed = dy[i];
    const float above = y[i] > 0 ? passed : 0;
    dx[i] = y[i] < 6 ? above : 0;
  }
}

CADRE_VECTOR_LOOP void HardSigmoid(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = ClampToSix(x[i] + 3.0F) / 6.0F;
}

CADRE_VECTOR_LOOP void HardSigmoidBackward(int64_t n, const float* y, const float* dy, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float passed = dy[i] / 6.0F;
    const float above = y[i] > 0 ? passed : 0;
    dx[i] = y[i] < 1 ? above : 0;
  }
}

CADRE_VECTOR_LOOP void HardSwish(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float inside = x[i] * (ClampToSix(x[i] + 3.0F) / 6.0F);
    y[i] = x[i] < -3.0F ? 0.0F : inside;
  }
}

CADRE_VECTOR_LOOP void HardSwishBackward(int64_t n, const float* x, const float* dy, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float passed = dy[i];
    const float inside = passed * (x[i] / 3.0F + 0.5F);
    const float below = x[i] <= -3.0F ? 0.0F : inside;
    dx[i] = x[i] < 3.0F ? below : passed;
  }
}

CADRE_VECTOR_LOOP void Silu(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * SigmoidOf(x[i]);
}

CADRE_VECTOR_LOOP void SiluBackward(int64_t n, const float* x, const float* dy, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float sigmoid = SigmoidOf(x[i]);
    dx[i] = dy[i] * sigmoid * (1.0F + x[i] * (1.0F - sigmoid));
  }
}

CADRE_VECTOR_LOOP void MultiplyRow(int64_t n, const float* x, const float* factor, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor[i];
}

CADRE_VECTOR_LOOP void AddProducts(int64_t n, const float* x, const float* dy, double* sums) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sums[i] += double{x[i]} * dy[i];
}

CADRE_VECTOR_LOOP void AddTo(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

// Keeps an element if its 24 random bits are at least `threshold`.
CADRE_VECTOR_LOOP void Drop(int64_t n, RandomSequence random, uint64_t first, uint32_t threshold,
                            float scale, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float kept = x[i] * scale;
    const uint32_t bits = random.Bits(first + i);
    y[i] = (bits >> 8) >= threshold ? kept : 0;
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
    case Activation::kApproximateGelu:
      return ApproximateGelu;
    case Activation::kRelu6:
      return Relu6;
    case Activation::kHardSwish:
      return HardSwish;
    case Activation::kHardSigmoid:
      return HardSigmoid;
    case Activation::kSilu:
      return Silu;
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
    case Activation::kApproximateGelu:
      return ApproximateGeluBackward;
    case Activation::kRelu6:
      return Relu6Backward;
    case Activation::kHardSwish:
      return HardSwishBackward;
    case Activation::kHardSigmoid:
      return HardSigmoidBackward;
    case Activation::kSilu:
      return SiluBackward;
    case Activation::kRelu:
      break;
  }
  return ReluBackward;
}

CADRE_VECTOR_LOOP float Largest(int64_t n, const float* x) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

CADRE_VECTOR_LOOP double Sum(int64_t n, const float* x) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

// The sum of exp(x - largest). After the shift no exponential overflows, and one of them is 1.
CADRE_VECTOR_LOOP double SumOfExponentials(int64_t n, const float* x, float largest) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += Exp(x[i] - largest);
  return sum;
}

CADRE_VECTOR_LOOP void Gradient(int64_t n, const float* x, float largest, float share, float off,
                                float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = Exp(x[i] - largest) * share - off;
}

struct RowLoss {
  double loss = 0;
  bool correct = false;
};

// A null dx is not computed.
RowLoss LossOfRow(int64_t classes, double smoothing, const float* x, int32_t label, float scale,
                  float* dx) {
  const float largest = Largest(classes, x);
  const double total = SumOfExponentials(classes, x, largest);
  const double each = smoothing / classes;
  double expected = (1 - smoothing) * x[label];
  // Without smoothing, an infinite logit of another class must not be multiplied by zero.
  if (smoothing > 0) expected += each * Sum(classes, x);
  RowLoss row{.loss = std::log(total) + largest - expected,
              .correct = x[label] == largest && std::find(x, x + label, largest) == x + label};
  if (dx == nullptr) return row;
  const double s = scale;
  Gradient(classes, x, largest, s / total, s * each, dx);
  const double shifted = double{x[label]} - largest, at_label = std::exp(shifted);
  dx[label] = s * (at_label / total - (1 - smoothing) - each);
  return row;
}

class CpuPointwise {
 public:
  explicit CpuPointwise(CpuContext& cpu) : cpu_(cpu) {}

  void ActivationForward(Activation kind, ConstFloatSpan x, FloatSpan y) {
    const int64_t n = x.size();
    ForParts(cpu_.threads, n, [loop = ForwardOf(kind), x, y](int64_t begin, int64_t end) {
      loop(end - begin, x.data() + begin, y.data() + begin);
    });
  }

  void ActivationBackward(Activation kind, ConstFloatSpan seen, ConstFloatSpan dy, FloatSpan dx) {
    const int64_t n = seen.size();
    ForParts(cpu_.threads, n, [loop = BackwardOf(kind), seen, dy, dx](int64_t begin, int64_t end) {
      loop(end - begin, seen.data() + begin, dy.data() + begin, dx.data() + begin);
    });
  }

  void Dropout(const DropoutKey& key, uint64_t first, ConstFloatSpan x, FloatSpan y) {
    const int64_t n = x.size();
    const RandomSequence random(key.seed, RandomStream::kDropout, key.layer);
    // A uniform number is 24 bits over 2^24, and rate * 2^24 is exact: comparing whole numbers is
    // the same as comparing the fractions.
    const uint32_t threshold = std::ceil(key.rate * 0x1.0p24F);
    const float scale = 1.0F / (1.0F - key.rate);
    ForParts(cpu_.threads, n, [=](int64_t begin, int64_t end) {
      Drop(end - begin, random, first + begin, threshold, scale, x.data() + begin,
           y.data() + begin);
    });
  }

  void Add(ConstFloatSpan x, FloatSpan y) {
    const int64_t n = x.size();
    ForParts(cpu_.threads, n, [x, y](int64_t begin, int64_t end) {
      AddTo(end - begin, x.data() + begin, y.data() + begin);
    });
  }

  void Multiply(const MultiplyDims& dims, ConstFloatSpan x, ConstFloatSpan factor, FloatSpan y) {
    const int64_t n = dims.channels;
    // One long row is divided among threads by its elements, several rows by rows.
    if (dims.batch * dims.rows == 1) {
      ForParts(cpu_.threads, n, [&](int64_t begin, int64_t end) {
        MultiplyRow(end - begin, x.data() + begin, factor.data() + begin, y.data() + begin);
      });
      return;
    }
    ForParts(cpu_.threads, dims.batch * dims.rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        MultiplyRow(n, x.data() + r * n, factor.data() + r / dims.rows * n, y.data() + r * n);
      }
    });
  }

  void MultiplyBackward(const MultiplyDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                        FloatSpan dfactor) {
    const int64_t n = dims.channels;
    if (dims.rows == 1) return Multiply(dims, x, dy, dfactor);
    ForParts(cpu_.threads, dims.batch, dims.rows * n, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(n);
      for (int64_t b = begin; b < end; ++b) {
        std::fill(sums.begin(), sums.end(), 0.0);
        for (int64_t r = b * dims.rows; r < (b + 1) * dims.rows; ++r) {
          AddProducts(n, x.data() + r * n, dy.data() + r * n, sums.data());
        }
        std::copy(sums.begin(), sums.end(), dfactor.data() + b * n);
      }
    });
  }

  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstFloatSpan x,
                               std::span<const int32_t> labels, float scale, FloatSpan dx) {
    std::vector<RowLoss> each(rows);
    // An exponential costs as much as several plain elements.
    ForParts(cpu_.threads, rows, 4 * classes, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const size_t at = r;
        each[at] = LossOfRow(classes, smoothing, x.data() + r * classes, labels[at], scale,
                             dx.empty() ? nullptr : dx.data() + r * classes);
      }
    });
    LossSums sums;
    for (const RowLoss& row : each) {
      sums.loss += row.loss;
      sums.correct += row.correct ? 1 : 0;
    }
    return sums;
  }

 private:
  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<PointwiseKernels> MakeCpuPointwise(CpuContext& cpu) {
  return std::make_unique<HostPointwise<SpanCaller<CpuPointwise>>>(cpu);
}

}  // namespace cadre
