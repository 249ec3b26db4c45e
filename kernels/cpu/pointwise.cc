// Activations, dropout and addition. Transcendental functions are computed by our own polynomials
// (vector_loops.h), because a call of libm per element would prevent vectorisation.
//
// Dropout draws from a counter-based generator (Salmon et al. 2011, "Parallel Random Numbers: As
// Easy as 1, 2, 3"): whether an element is dropped depends only on the seed, the layer and the
// element's number in the run, so forward and backward, every division of the batch and every
// device agree without storing a mask.
//
// A step of long short-term memory is one pass over the cells of a row, whose gates are four runs
// of memory.
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

// An activation: its value at x, and dx = dy f'(x), where `seen` is x if GradientReadsInput, else
// f(x). All operands are loaded before a choice among them, because a conditional load would
// prevent vectorisation.

struct Relu {
  CADRE_INLINE static float Forward(float x) { return x < 0 ? 0 : x; }
  CADRE_INLINE static float Backward(float y, float dy) { return y > 0 ? dy : 0; }
};

struct Gelu {
  CADRE_INLINE static float Forward(float x) { return x * NormalOf(x).below; }
  CADRE_INLINE static float Backward(float x, float dy) {
    constexpr float kDensity = 0.398942280F;  // 1 / sqrt(2 pi)
    const Normal normal = NormalOf(x);
    return dy * (normal.below + x * normal.density * kDensity);
  }
};

struct Sigmoid {
  CADRE_INLINE static float Forward(float x) { return SigmoidOf(x); }
  CADRE_INLINE static float Backward(float y, float dy) { return dy * y * (1 - y); }
};

struct Tanh {
  CADRE_INLINE static float Forward(float x) { return TanhOf(x); }
  CADRE_INLINE static float Backward(float y, float dy) { return dy * (1 - y * y); }
};

// The approximation of the normal distribution function by tanh, as a sigmoid: (1 + tanh(u)) / 2 =
// 1 / (1 + e^(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct ApproximateGelu {
  static constexpr float kTwiceRoot = 1.59576912F;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715F;

  CADRE_INLINE static float Below(float x) {
    return SigmoidOf(kTwiceRoot * x * (1.0F + kCubic * x * x));
  }
  CADRE_INLINE static float Forward(float x) { return x * Below(x); }
  CADRE_INLINE static float Backward(float x, float dy) {
    const float below = Below(x);
    const float slope = kTwiceRoot * (1.0F + 3.0F * kCubic * x * x);
    return dy * (below + x * below * (1.0F - below) * slope);
  }
};

// min(max(x, 0), 6), and NaN for NaN.
CADRE_INLINE float ClampToSix(float x) {
  const float above = x < 0 ? 0 : x;
  return above > 6 ? 6 : above;
}

struct Relu6 {
  CADRE_INLINE static float Forward(float x) { return ClampToSix(x); }
  CADRE_INLINE static float Backward(float y, float dy) {
    const float above = y > 0 ? dy : 0;
    return y < 6 ? above : 0;
  }
};

struct HardSigmoid {
  CADRE_INLINE static float Forward(float x) { return ClampToSix(x + 3.0F) / 6.0F; }
  CADRE_INLINE static float Backward(float y, float dy) {
    const float passed = dy / 6.0F;
    const float above = y > 0 ? passed : 0;
    return y < 1 ? above : 0;
  }
};

struct HardSwish {
  CADRE_INLINE static float Forward(float x) {
    const float inside = x * (ClampToSix(x + 3.0F) / 6.0F);
    return x < -3.0F ? 0.0F : inside;
  }
  CADRE_INLINE static float Backward(float x, float dy) {
    const float inside = dy * (x / 3.0F + 0.5F);
    const float below = x <= -3.0F ? 0.0F : inside;
    return x < 3.0F ? below : dy;
  }
};

struct Silu {
  CADRE_INLINE static float Forward(float x) { return x * SigmoidOf(x); }
  CADRE_INLINE static float Backward(float x, float dy) {
    const float sigmoid = SigmoidOf(x);
    return dy * sigmoid * (1.0F + x * (1.0F - sigmoid));
  }
};

// Calls f with an object of the class that computes `kind`.
template <typename F>
void ByActivation(Activation kind, const F& f) {
  switch (kind) {
    case Activation::kRelu:
      return f(Relu());
    case Activation::kGelu:
      return f(Gelu());
    case Activation::kSigmoid:
      return f(Sigmoid());
    case Activation::kTanh:
      return f(Tanh());
    case Activation::kApproximateGelu:
      return f(ApproximateGelu());
    case Activation::kRelu6:
      return f(Relu6());
    case Activation::kHardSwish:
      return f(HardSwish());
    case Activation::kHardSigmoid:
      return f(HardSigmoid());
    case Activation::kSilu:
      return f(Silu());
  }
}

// In all loops x and y (dy and dx) may be the same: element i is read before it is written, and
// `omp simd` declares that the iterations are independent.

template <typename Function, typename T>
CADRE_VECTOR_LOOP void Forward(int64_t n, const T* x, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(y + i, Function::Forward(Load<float>(x + i)));
}

template <typename Function, typename T>
CADRE_VECTOR_LOOP void Backward(int64_t n, const T* seen, const T* dy, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    Store(dx + i, Function::Backward(Load<float>(seen + i), Load<float>(dy + i)));
  }
}

template <typename T>
CADRE_VECTOR_LOOP void MultiplyRow(int64_t n, const T* x, const T* factor, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(y + i, Load<float>(x + i) * Load<float>(factor + i));
}

template <typename T>
CADRE_VECTOR_LOOP void AddProducts(int64_t n, const T* x, const T* dy, double* sums) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sums[i] += double{Load<float>(x + i)} * Load<float>(dy + i);
}

template <typename T>
CADRE_VECTOR_LOOP void SumOf(int64_t n, const T* a, const T* b, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(y + i, Load<float>(a + i) + Load<float>(b + i));
}

// A row of PointwiseKernels::LstmForward. `recurrent` and `previous` are null in the first step.
template <bool kFirst, typename T>
CADRE_VECTOR_LOOP void LstmRow(int64_t n, const T* recurrent, const float* previous, T* gates,
                               float* cell, T* y) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    float i = Load<float>(gates + c), f = Load<float>(gates + n + c);
    float g = Load<float>(gates + 2 * n + c), o = Load<float>(gates + 3 * n + c);
    if constexpr (!kFirst) {
      i += Load<float>(recurrent + c);
      f += Load<float>(recurrent + n + c);
      g += Load<float>(recurrent + 2 * n + c);
      o += Load<float>(recurrent + 3 * n + c);
    }
    i = SigmoidOf(i);
    f = SigmoidOf(f);
    g = TanhOf(g);
    o = SigmoidOf(o);
    float value = i * g;
    if constexpr (!kFirst) value += f * previous[c];
    Store(gates + c, i);
    Store(gates + n + c, f);
    Store(gates + 2 * n + c, g);
    Store(gates + 3 * n + c, o);
    cell[c] = value;
    Store(y + c, o * TanhOf(value));
  }
}

template <bool kFirst, typename T>
CADRE_VECTOR_LOOP void LstmRowBackward(int64_t n, const T* dy, const float* previous,
                                       const float* cell, T* gates, float* dcell) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    const float i = Load<float>(gates + c), f = Load<float>(gates + n + c);
    const float g = Load<float>(gates + 2 * n + c), o = Load<float>(gates + 3 * n + c);
    const float t = TanhOf(cell[c]), d = Load<float>(dy + c);
    const float dc = dcell[c] + d * o * (1 - t * t);
    float before = 0;
    if constexpr (!kFirst) before = previous[c];
    Store(gates + c, dc * g * i * (1 - i));
    Store(gates + n + c, dc * before * f * (1 - f));
    Store(gates + 2 * n + c, dc * i * (1 - g * g));
    Store(gates + 3 * n + c, d * t * o * (1 - o));
    dcell[c] = dc * f;
  }
}

// Keeps an element if its 24 random bits are at least `threshold`.
template <typename T>
CADRE_VECTOR_LOOP void Drop(int64_t n, RandomSequence random, uint64_t first, uint32_t threshold,
                            float scale, const T* x, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float kept = Load<float>(x + i) * scale;
    const uint32_t bits = random.Bits(first + i);
    Store(y + i, (bits >> 8) >= threshold ? kept : 0.0F);
  }
}

// y = scores + offsets, but kNoScore where ids equal `label`.
template <typename T>
CADRE_VECTOR_LOOP void ScoreSample(int64_t n, const float* ids, float label, const float* offsets,
                                   const float* scores, T* __restrict y) {
  for (int64_t c = 0; c < n; ++c) {
    Store(y + c, ids[c] == label ? kNoScore : scores[c] + offsets[c]);
  }
}

template <typename T>
CADRE_VECTOR_LOOP float Largest(int64_t n, const T* x) {
  float largest = Load<float>(x);
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const float value = Load<float>(x + i);
    largest = value > largest ? value : largest;
  }
  return largest;
}

template <typename T>
CADRE_VECTOR_LOOP double Sum(int64_t n, const T* x) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += Load<float>(x + i);
  return sum;
}

// The sum of exp(x - largest). After the shift no exponential overflows, and one of them is 1.
template <typename T>
CADRE_VECTOR_LOOP double SumOfExponentials(int64_t n, const T* x, float largest) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += Exp(Load<float>(x + i) - largest);
  return sum;
}

template <typename T>
CADRE_VECTOR_LOOP void Gradient(int64_t n, const T* x, float largest, float share, float off,
                                T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(dx + i, Exp(Load<float>(x + i) - largest) * share - off);
}

// Rows of PointwiseKernels::SoftmaxForward and SoftmaxBackward.
template <typename T>
CADRE_VECTOR_LOOP void SoftmaxRow(int64_t n, float scale, const float* x, T* y) {
  const float largest = Largest(n, x);
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += Exp(scale * (x[i] - largest));
  const float inverse = 1 / total;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(y + i, Exp(scale * (x[i] - largest)) * inverse);
}

template <typename T>
CADRE_VECTOR_LOOP void SoftmaxRowBackward(int64_t n, float scale, const T* y, const float* dy,
                                          T* dx) {
  double weighted = 0;
#pragma omp simd reduction(+ : weighted)
  for (int64_t i = 0; i < n; ++i) weighted += double{Load<float>(y + i)} * dy[i];
  const float sum = weighted;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(dx + i, scale * Load<float>(y + i) * (dy[i] - sum));
}

struct RowLoss {
  double loss = 0;
  bool correct = false;
};

// A null dx is not computed.
template <typename T>
RowLoss LossOfRow(int64_t classes, double smoothing, const T* x, int32_t label, float scale,
                  T* dx) {
  const float largest = Largest(classes, x);
  const double total = SumOfExponentials(classes, x, largest);
  const double each = smoothing / classes;
  const float labelled = Load<float>(x + label);
  double expected = (1 - smoothing) * labelled;
  // Without smoothing, an infinite logit of another class must not be multiplied by zero.
  if (smoothing > 0) expected += each * Sum(classes, x);
  const auto is_largest = [largest](T value) { return ToFloat(value) == largest; };
  RowLoss row{.loss = std::log(total) + largest - expected,
              .correct = labelled == largest && std::none_of(x, x + label, is_largest)};
  if (dx == nullptr) return row;
  const double s = scale;
  Gradient(classes, x, largest, s / total, s * each, dx);
  const double shifted = double{labelled} - largest, at_label = std::exp(shifted);
  const float gradient = s * (at_label / total - (1 - smoothing) - each);
  Store(dx + label, gradient);
  return row;
}

class CpuPointwise {
 public:
  explicit CpuPointwise(CpuContext& cpu) : cpu_(cpu) {}

  void ActivationForward(Activation kind, ConstValues x, Values y) {
    ByActivation(kind, [&](auto function) {
      ByType(x.type(), [&](auto zero) {
        using T = decltype(zero);
        ForParts(cpu_.threads, std::ssize(x),
                 [from = Data<T>(x), to = Data<T>(y)](int64_t begin, int64_t end) {
                   Forward<decltype(function)>(end - begin, from + begin, to + begin);
                 });
      });
    });
  }

  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) {
    ByActivation(kind, [&](auto function) {
      ByType(dy.type(), [&](auto zero) {
        using T = decltype(zero);
        ForParts(cpu_.threads, std::ssize(dy), [&](int64_t begin, int64_t end) {
          Backward<decltype(function)>(end - begin, Data<T>(seen) + begin, Data<T>(dy) + begin,
                                       Data<T>(dx) + begin);
        });
      });
    });
  }

  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) {
    const RandomSequence random(key.seed, RandomStream::kDropout, key.layer);
    // A uniform number is 24 bits over 2^24, and rate * 2^24 is exact: comparing whole numbers is
    // the same as comparing the fractions.
    const uint32_t threshold = std::ceil(key.rate * 0x1.0p24F);
    const float scale = 1.0F / (1.0F - key.rate);
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, std::ssize(x), [&](int64_t begin, int64_t end) {
        Drop(end - begin, random, first + begin, threshold, scale, Data<T>(x) + begin,
             Data<T>(y) + begin);
      });
    });
  }

  void Sum(ConstValues a, ConstValues b, Values y) {
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, std::ssize(y), [&](int64_t begin, int64_t end) {
        SumOf(end - begin, Data<T>(a) + begin, Data<T>(b) + begin, Data<T>(y) + begin);
      });
    });
  }

  void Multiply(const MultiplyDims& dims, ConstValues x, ConstValues factor, Values y) {
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      MultiplyRows(dims, Data<T>(x), Data<T>(factor), Data<T>(y));
    });
  }

  void MultiplyBackward(const MultiplyDims& dims, ConstValues x, ConstValues dy, Values dfactor) {
    const int64_t n = dims.channels;
    if (dims.rows == 1) return Multiply(dims, x, dy, dfactor);
    ByType(dfactor.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, dims.batch, dims.rows * n, [&](int64_t begin, int64_t end) {
        std::vector<double> sums(n);
        for (int64_t b = begin; b < end; ++b) {
          std::fill(sums.begin(), sums.end(), 0.0);
          for (int64_t r = b * dims.rows; r < (b + 1) * dims.rows; ++r) {
            AddProducts(n, Data<T>(x) + r * n, Data<T>(dy) + r * n, sums.data());
          }
          StoreRounded(sums, Data<T>(dfactor) + b * n);
        }
      });
    });
  }

  void LstmForward(const RowsDims& dims, ConstValues recurrent, ConstFloatSpan previous,
                   Values gates, FloatSpan cell, Values y) {
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      ForEachRow(dims, kLstmCost, [&](int64_t n, int64_t at) {
        if (previous.empty()) {
          LstmRow<true, T>(n, nullptr, nullptr, Data<T>(gates) + 4 * at, cell.data() + at,
                           Data<T>(y) + at);
        } else {
          LstmRow<false>(n, Data<T>(recurrent) + 4 * at, previous.data() + at,
                         Data<T>(gates) + 4 * at, cell.data() + at, Data<T>(y) + at);
        }
      });
    });
  }

  void LstmBackward(const RowsDims& dims, ConstValues dy, ConstFloatSpan previous,
                    ConstFloatSpan cell, Values gates, FloatSpan dcell) {
    ByType(dy.type(), [&](auto zero) {
      using T = decltype(zero);
      ForEachRow(dims, kLstmCost, [&](int64_t n, int64_t at) {
        if (previous.empty()) {
          LstmRowBackward<true>(n, Data<T>(dy) + at, nullptr, cell.data() + at,
                                Data<T>(gates) + 4 * at, dcell.data() + at);
        } else {
          LstmRowBackward<false>(n, Data<T>(dy) + at, previous.data() + at, cell.data() + at,
                                 Data<T>(gates) + 4 * at, dcell.data() + at);
        }
      });
    });
  }

  void SoftmaxForward(const RowsDims& dims, float scale, ConstFloatSpan x, Values y) {
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      ForEachRow(dims, kExponentialCost, [&](int64_t n, int64_t at) {
        SoftmaxRow(n, scale, x.data() + at, Data<T>(y) + at);
      });
    });
  }

  void SoftmaxBackward(const RowsDims& dims, float scale, ConstValues y, ConstFloatSpan dy,
                       Values dx) {
    ByType(dx.type(), [&](auto zero) {
      using T = decltype(zero);
      ForEachRow(dims, 1, [&](int64_t n, int64_t at) {
        SoftmaxRowBackward(n, scale, Data<T>(y) + at, dy.data() + at, Data<T>(dx) + at);
      });
    });
  }

  void SampledScores(const RowsDims& dims, ConstFloatSpan ids, ConstFloatSpan offsets,
                     ConstFloatSpan label_scores, ConstFloatSpan scores, Values y) {
    const int64_t n = dims.channels;
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, dims.rows, n, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const size_t row = r, label = n + r;
          T* const to = Data<T>(y) + r * (1 + n);
          Store(to, label_scores[row] + offsets[label]);
          ScoreSample(n, ids.data(), ids[label], offsets.data(), scores.data() + r * n, to + 1);
        }
      });
    });
  }

  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) {
    std::vector<RowLoss> each(rows);
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, rows, kExponentialCost * classes, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const size_t at = r;
          each[at] = LossOfRow(classes, smoothing, Data<T>(x) + r * classes, labels[at], scale,
                               dx.empty() ? nullptr : Data<T>(dx) + r * classes);
        }
      });
    });
    LossSums sums;
    for (const RowLoss& row : each) {
      sums.loss += row.loss;
      sums.correct += row.correct ? 1 : 0;
    }
    return sums;
  }

 private:
  // In plain elements.
  static constexpr int64_t kExponentialCost = 4;
  static constexpr int64_t kLstmCost = 6 * kExponentialCost;

  // Calls f(elements of a row, offset of its first one) for each row that has elements.
  template <typename F>
  void ForEachRow(const RowsDims& dims, int64_t cost, F f) {
    const int64_t n = dims.channels;
    if (n == 0) return;
    ForParts(cpu_.threads, dims.rows, cost * n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(n, r * n);
    });
  }

  template <typename T>
  void MultiplyRows(const MultiplyDims& dims, const T* x, const T* factor, T* y) {
    const int64_t n = dims.channels;
    // One long row is divided among threads by its elements, several rows by rows.
    if (dims.batch * dims.rows == 1) {
      ForParts(cpu_.threads, n, [&](int64_t begin, int64_t end) {
        MultiplyRow(end - begin, x + begin, factor + begin, y + begin);
      });
      return;
    }
    ForParts(cpu_.threads, dims.batch * dims.rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        MultiplyRow(n, x + r * n, factor + r / dims.rows * n, y + r * n);
      }
    });
  }

  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<PointwiseKernels> MakeCpuPointwise(CpuContext& cpu) {
  return std::make_unique<HostPointwise<SpanCaller<CpuPointwise>>>(cpu);
}

}  // namespace cadre
