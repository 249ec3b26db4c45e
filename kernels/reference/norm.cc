// Batch, layer and local response normalisation, by their definitions.
//
// With n = (x - mean) * inverse, y = n * scale + shift. Because mean and inverse depend on x, too,
// the gradient has two more terms than scale * inverse * dy: the mean of dy, and n times the mean
// of dy * n (Ioffe and Szegedy 2015). For batch norm the caller computes these means over the batch
// of all ranks; for layer norm they are means over the row.
//
// Variances are computed from deviations or from sums in double, where the cancellation of
// E[x^2] - E[x]^2 does no harm to a result in fp32.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_backend.h"

namespace cadre {
namespace {

int64_t WordOf(const RowsDims& dims, int64_t row, int64_t channel) {
  return row / 32 * dims.channels + channel;
}
int32_t BitOf(int64_t row) { return static_cast<int32_t>(1U << (row % 32)); }
bool IsPositive(const RowsDims& dims, std::span<const int32_t> positive, int64_t row,
                int64_t channel) {
  return positive.empty() || (positive[WordOf(dims, row, channel)] & BitOf(row)) != 0;
}

double Normalised(double x, float mean, float inverse) { return (x - mean) * inverse; }

// The channels [first, end) around a channel over which its local response sums.
struct Around {
  int64_t first, end;
};

Around AroundOf(const LrnDims& d, int64_t c) {
  return {.first = std::max<int64_t>(0, c - d.size / 2),
          .end = std::min(d.channels, c + (d.size - 1) / 2 + 1)};
}

class ReferenceNorm {
 public:
  void BatchNormSums(const RowsDims& dims, ConstFloatSpan x, std::span<double> sums) {
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t r = 0; r < dims.rows; ++r) {
      for (int64_t c = 0; c < dims.channels; ++c) {
        const double value = x[r * dims.channels + c];
        sums[c] += value;
        sums[dims.channels + c] += value * value;
      }
    }
  }

  void BatchNormForward(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan mean,
                        ConstFloatSpan inverse, ConstFloatSpan scale, ConstFloatSpan shift,
                        ConstFloatSpan addend, std::span<int32_t> positive, FloatSpan y) {
    std::fill(positive.begin(), positive.end(), 0);
    for (int64_t r = 0; r < dims.rows; ++r) {
      for (int64_t c = 0; c < dims.channels; ++c) {
        const int64_t at = r * dims.channels + c;
        const double normal = Normalised(x[at], mean[c], inverse[c]);
        float value = normal * scale[c] + shift[c];
        if (!addend.empty()) value += addend[at];
        if (!positive.empty()) {
          if (value < 0) value = 0;
          if (value > 0) positive[WordOf(dims, r, c)] |= BitOf(r);
        }
        y[at] = value;
      }
    }
  }

  void BatchNormBackwardSums(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                             ConstFloatSpan other_dy, std::span<const int32_t> positive,
                             ConstFloatSpan mean, ConstFloatSpan inverse, FloatSpan total_dy,
                             std::span<double> sums, FloatSpan dscale, FloatSpan dshift) {
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t r = 0; r < dims.rows; ++r) {
      for (int64_t c = 0; c < dims.channels; ++c) {
        const int64_t at = r * dims.channels + c;
        const double normal = Normalised(x[at], mean[c], inverse[c]);
        float gradient = dy[at];
        if (!other_dy.empty()) gradient += other_dy[at];
        if (!IsPositive(dims, positive, r, c)) gradient = 0;
        if (!total_dy.empty()) total_dy[at] = gradient;
        sums[c] += gradient;
        sums[dims.channels + c] += gradient * normal;
      }
    }
    StoreHalves(sums, dshift, dscale);
  }

  void BatchNormBackward(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                         std::span<const int32_t> positive, ConstFloatSpan mean,
                         ConstFloatSpan inverse, ConstFloatSpan scale, int64_t rows,
                         std::span<const double> sums, FloatSpan dx) {
    const std::vector<float> means = MeansOf(sums, rows);
    for (int64_t r = 0; r < dims.rows; ++r) {
      for (int64_t c = 0; c < dims.channels; ++c) {
        const int64_t at = r * dims.channels + c;
        const double normal = Normalised(x[at], mean[c], inverse[c]);
        const double gradient = IsPositive(dims, positive, r, c) ? dy[at] : 0;
        const double inner = gradient - means[c] - normal * means[dims.channels + c];
        dx[at] = Product(scale[c], inverse[c]) * inner;
      }
    }
  }

  void LayerNormForward(const RowsDims& dims, float epsilon, ConstFloatSpan x, ConstFloatSpan scale,
                        ConstFloatSpan shift, FloatSpan y, FloatSpan mean, FloatSpan inverse) {
    // Rows without channels have mean and variance 0.
    const double count = std::max<int64_t>(1, dims.channels);
    for (int64_t r = 0; r < dims.rows; ++r) {
      const auto row = x.subspan(r * dims.channels, dims.channels);
      double sum = 0;
      for (const float value : row) sum += value;
      const double average = sum / count;
      double squares = 0;
      for (const float value : row) squares += (value - average) * (value - average);
      const double factor = 1 / std::sqrt(squares / count + epsilon);
      for (int64_t c = 0; c < dims.channels; ++c) {
        y[r * dims.channels + c] = (row[c] - average) * factor * scale[c] + shift[c];
      }
      mean[r] = average;
      inverse[r] = factor;
    }
  }

  void LayerNormBackward(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                         ConstFloatSpan mean, ConstFloatSpan inverse, ConstFloatSpan scale,
                         FloatSpan dx, FloatSpan dscale, FloatSpan dshift) {
    const int64_t channels = dims.channels;
    std::vector<double> scale_sums(dscale.size());
    std::vector<double> shift_sums(dshift.size());
    std::vector<double> normal(channels);
    for (int64_t r = 0; r < dims.rows; ++r) {
      // Sums of scale * dy and of scale * dy * normal.
      double sum = 0;
      double product_sum = 0;
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t at = r * channels + c;
        normal[c] = Normalised(x[at], mean[r], inverse[r]);
        sum += Product(scale[c], dy[at]);
        product_sum += Product(scale[c], dy[at]) * normal[c];
        scale_sums[c] += dy[at] * normal[c];
        shift_sums[c] += dy[at];
      }
      const double count = channels;
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t at = r * channels + c;
        const double inner =
            Product(scale[c], dy[at]) - sum / count - normal[c] * product_sum / count;
        dx[at] = inverse[r] * inner;
      }
    }
    Store(scale_sums, dscale);
    Store(shift_sums, dshift);
  }

  void LrnForward(const LrnDims& dims, ConstFloatSpan x, FloatSpan y, FloatSpan d) {
    const double alpha = dims.alpha, factor = alpha / dims.size;
    for (int64_t r = 0; r < dims.rows; ++r) {
      const int64_t row = r * dims.channels;
      for (int64_t c = 0; c < dims.channels; ++c) {
        const auto [first, end] = AroundOf(dims, c);
        double squares = 0;
        for (int64_t i = first; i < end; ++i) {
          squares += Product(x[row + i], x[row + i]);
        }
        const double divisor = dims.k + factor * squares;
        d[row + c] = divisor;
        y[row + c] = x[row + c] * std::pow(divisor, -dims.beta);
      }
    }
  }

  // y[j] depends on x[c] through its numerator if j = c, and through d[j] if c is in the window
  // around j.
  void LrnBackward(const LrnDims& dims, ConstFloatSpan x, ConstFloatSpan d, ConstFloatSpan dy,
                   FloatSpan dx) {
    const double alpha = dims.alpha, factor = alpha / dims.size;
    const double beta = dims.beta;
    std::vector<double> sums(dx.size());
    for (int64_t r = 0; r < dims.rows; ++r) {
      const int64_t row = r * dims.channels;
      for (int64_t c = 0; c < dims.channels; ++c) {
        const double divisor = d[row + c];
        sums[row + c] += dy[row + c] * std::pow(divisor, -beta);
        const double through_divisor =
            Product(dy[row + c], x[row + c]) * -beta * std::pow(divisor, -beta - 1);
        const auto [first, end] = AroundOf(dims, c);
        for (int64_t i = first; i < end; ++i) {
          sums[row + i] += through_divisor * 2 * factor * x[row + i];
        }
      }
    }
    Store(sums, dx);
  }
};

}  // namespace

std::unique_ptr<NormKernels> MakeReferenceNorm() {
  return std::make_unique<HostNorm<SpanCaller<ReferenceNorm>>>();
}

}  // namespace cadre
