// Activations, dropout, addition, steps of recurrent layers, softmax and the loss, by their
// definitions in double.
//
// The loss is computed from log(softmax(x)), with the maximum of the row subtracted first, so that
// no exponential overflows and no logarithm of an underflowed probability is taken.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/random.h"
#include "kernels/reference/reference_backend.h"

namespace cadre {
namespace {

// Normal distribution function and density.
double NormalBelow(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
double NormalDensity(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }
double HardSigmoidOf(double x) { return (x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6; }

// The approximation (1 + tanh(u)) / 2 of NormalBelow(x), which equals sigmoid(2 u), and the
// derivative of 2 u.
constexpr double kCubic = 0.044715;
double TwiceU(double x) { return 2 * std::sqrt(2 / std::numbers::pi) * (x + kCubic * x * x * x); }
double TwiceUGradient(double x) {
  return 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * kCubic * x * x);
}

double Value(Activation kind, double x) {
  switch (kind) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return x * NormalBelow(x);
    case Activation::kSigmoid:
      return SigmoidOf(x);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kApproximateGelu:
      return x * SigmoidOf(TwiceU(x));
    case Activation::kRelu6:
      return x < 0 ? 0 : x > 6 ? 6 : x;
    case Activation::kHardSwish:
      return x < -3 ? 0 : x * HardSigmoidOf(x);
    case Activation::kHardSigmoid:
      return HardSigmoidOf(x);
    case Activation::kSilu:
      return x * SigmoidOf(x);
  }
  return x;
}

double Gradient(Activation kind, double seen, double dy) {
  switch (kind) {
    case Activation::kRelu:
      return seen > 0 ? dy : 0;
    case Activation::kGelu:
      return dy * (NormalBelow(seen) + seen * NormalDensity(seen));
    case Activation::kSigmoid:
      return dy * seen * (1 - seen);
    case Activation::kTanh:
      return dy * (1 - seen * seen);
    case Activation::kApproximateGelu: {
      const double below = SigmoidOf(TwiceU(seen));
      return dy * (below + seen * below * (1 - below) * TwiceUGradient(seen));
    }
    case Activation::kRelu6:
      return seen > 0 && seen < 6 ? dy : 0;
    case Activation::kHardSwish:
      return seen <= -3 ? 0 : seen < 3 ? dy * (seen / 3 + 0.5) : dy;
    case Activation::kHardSigmoid:
      return seen > 0 && seen < 1 ? dy / 6 : 0;
    case Activation::kSilu:
      return dy * SigmoidOf(seen) * (1 + seen * (1 - SigmoidOf(seen)));
  }
  return dy;
}

class ReferencePointwise {
 public:
  void ActivationForward(Activation kind, ConstFloatSpan x, FloatSpan y) {
    for (size_t i = 0; i < x.size(); ++i) y[i] = Value(kind, x[i]);
  }

  void ActivationBackward(Activation kind, ConstFloatSpan seen, ConstFloatSpan dy, FloatSpan dx) {
    for (size_t i = 0; i < seen.size(); ++i) {
      dx[i] = Gradient(kind, seen[i], dy[i]);
    }
  }

  void Dropout(const DropoutKey& key, uint64_t first, ConstFloatSpan x, FloatSpan y) {
    for (size_t i = 0; i < x.size(); ++i) {
      const bool keep =
          RandomUniform(key.seed, RandomStream::kDropout, key.layer, first + i) >= key.rate;
      y[i] = keep ? x[i] / (1.0 - key.rate) : 0;
    }
  }

  void Sum(ConstFloatSpan a, ConstFloatSpan b, FloatSpan y) {
    for (size_t i = 0; i < y.size(); ++i) y[i] = a[i] + b[i];
  }

  void Multiply(const MultiplyDims& dims, ConstFloatSpan x, ConstFloatSpan factor, FloatSpan y) {
    const int64_t sample = dims.rows * dims.channels;
    for (int64_t i = 0; i < std::ssize(x); ++i) {
      y[i] = x[i] * factor[i / sample * dims.channels + i % dims.channels];
    }
  }

  void MultiplyBackward(const MultiplyDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                        FloatSpan dfactor) {
    for (int64_t i = 0; i < std::ssize(dfactor); ++i) {
      const int64_t first = i / dims.channels * dims.rows * dims.channels + i % dims.channels;
      double sum = 0;
      for (int64_t r = 0; r < dims.rows; ++r) {
        const int64_t at = first + r * dims.channels;
        sum += Product(x[at], dy[at]);
      }
      dfactor[i] = sum;
    }
  }

  void LstmForward(const RowsDims& dims, ConstFloatSpan recurrent, ConstFloatSpan previous,
                   FloatSpan gates, FloatSpan cell, FloatSpan y) {
    ForEachCell(dims, [&](int64_t at, const Gates& to) {
      const auto sum = [&](int64_t gate) {
        return recurrent.empty() ? double{gates[gate]} : double{gates[gate]} + recurrent[gate];
      };
      const double i = SigmoidOf(sum(to.i)), f = SigmoidOf(sum(to.f));
      const double g = std::tanh(sum(to.g)), o = SigmoidOf(sum(to.o));
      const double c = (previous.empty() ? 0 : f * previous[at]) + i * g;
      gates[to.i] = i;
      gates[to.f] = f;
      gates[to.g] = g;
      gates[to.o] = o;
      cell[at] = c;
      y[at] = o * std::tanh(c);
    });
  }

  void LstmBackward(const RowsDims& dims, ConstFloatSpan dy, ConstFloatSpan previous,
                    ConstFloatSpan cell, FloatSpan gates, FloatSpan dcell) {
    ForEachCell(dims, [&](int64_t at, const Gates& of) {
      const double i = gates[of.i], f = gates[of.f], g = gates[of.g], o = gates[of.o];
      const double t = std::tanh(double{cell[at]});
      const double dc = dcell[at] + dy[at] * o * (1 - t * t);
      gates[of.i] = dc * g * i * (1 - i);
      gates[of.f] = previous.empty() ? 0 : dc * previous[at] * f * (1 - f);
      gates[of.g] = dc * i * (1 - g * g);
      gates[of.o] = dy[at] * t * o * (1 - o);
      dcell[at] = dc * f;
    });
  }

  void SoftmaxForward(const RowsDims& dims, float scale, ConstFloatSpan x, FloatSpan y) {
    for (int64_t r = 0; r < dims.rows && dims.channels > 0; ++r) {
      const auto row = x.subspan(r * dims.channels, dims.channels);
      const double largest = *std::max_element(row.begin(), row.end());
      const auto exponential = [&](float value) { return std::exp(scale * (value - largest)); };
      double total = 0;
      for (const float value : row) total += exponential(value);
      for (int64_t c = 0; c < dims.channels; ++c) {
        y[r * dims.channels + c] = exponential(row[c]) / total;
      }
    }
  }

  void SoftmaxBackward(const RowsDims& dims, float scale, ConstFloatSpan y, ConstFloatSpan dy,
                       FloatSpan dx) {
    for (int64_t first = 0; first < std::ssize(y); first += dims.channels) {
      double weighted = 0;
      for (int64_t i = first; i < first + dims.channels; ++i) weighted += Product(y[i], dy[i]);
      for (int64_t i = first; i < first + dims.channels; ++i) {
        dx[i] = scale * y[i] * (dy[i] - weighted);
      }
    }
  }

  void SampledScores(const RowsDims& dims, ConstFloatSpan ids, ConstFloatSpan offsets,
                     ConstFloatSpan label_scores, ConstFloatSpan scores, FloatSpan y) {
    const int64_t sampled = dims.channels;
    for (int64_t r = 0; r < dims.rows; ++r) {
      const int64_t label = sampled + r;
      y[r * (1 + sampled)] = label_scores[r] + offsets[label];
      for (int64_t c = 0; c < sampled; ++c) {
        y[r * (1 + sampled) + 1 + c] =
            ids[c] == ids[label] ? kNoScore : scores[r * sampled + c] + offsets[c];
      }
    }
  }

  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstFloatSpan x,
                               std::span<const int32_t> labels, float scale, FloatSpan dx) {
    const double mass = smoothing, elsewhere = mass / classes;
    LossSums sums;
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = x.subspan(r * classes, classes);
      const int32_t label = labels[r];
      const auto largest = std::max_element(row.begin(), row.end());
      const double maximum = *largest;
      sums.correct += largest - row.begin() == label ? 1 : 0;
      double total = 0;
      for (const float value : row) total += std::exp(value - maximum);
      for (int64_t c = 0; c < classes; ++c) {
        const double log_p = row[c] - maximum - std::log(total);
        const double target = elsewhere + (c == label ? 1.0 - smoothing : 0.0);
        if (target > 0) sums.loss -= target * log_p;
        if (!dx.empty()) {
          dx[r * classes + c] = scale * (std::exp(log_p) - target);
        }
      }
    }
    return sums;
  }

 private:
  // The offsets of the gates of one cell.
  struct Gates {
    int64_t i, f, g, o;
  };

  // Calls f(at, gates) for the offset of each cell.
  template <typename F>
  static void ForEachCell(const RowsDims& dims, F f) {
    for (int64_t r = 0; r < dims.rows; ++r) {
      for (int64_t c = 0; c < dims.channels; ++c) {
        const int64_t first = 4 * r * dims.channels + c;
        f(r * dims.channels + c, Gates{first, first + dims.channels, first + 2 * dims.channels,
                                       first + 3 * dims.channels});
      }
    }
  }
};

}  // namespace

std::unique_ptr<PointwiseKernels> MakeReferencePointwise() {
  return std::make_unique<HostPointwise<SpanCaller<ReferencePointwise>>>();
}

}  // namespace cadre
