#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/sums.h"

namespace cadre {
namespace {

void CheckChannels(const RowsDims& d, std::initializer_list<std::span<const float>> spans) {
  for (const auto span : spans) CheckSize("a value by channel", span.size(), d.channels);
}

// The channels around one that its local response sums over, [first, end).
struct Around {
  int64_t first, end;
};

Around AroundOf(const LrnDims& d, int64_t c) {
  return {.first = std::max<int64_t>(0, c - d.size / 2),
          .end = std::min(d.channels, c + (d.size - 1) / 2 + 1)};
}

}  // namespace

void ReferenceNorm::BatchNormSums(const RowsDims& dims, ConstValues x_values,
                                  std::span<double> sums) {
  const auto x = x_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  std::fill(sums.begin(), sums.end(), 0);
  for (int64_t r = 0; r < dims.rows; ++r) {
    for (int64_t c = 0; c < dims.channels; ++c) {
      const double value = x[r * dims.channels + c];
      sums[c] += value;
      sums[dims.channels + c] += value * value;
    }
  }
}

void ReferenceNorm::BatchNormForward(const RowsDims& dims, ConstValues x_values,
                                     std::span<const float> mean, std::span<const float> inverse,
                                     std::span<const float> scale, std::span<const float> shift,
                                     Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, shift});
  for (int64_t r = 0; r < dims.rows; ++r) {
    for (int64_t c = 0; c < dims.channels; ++c) {
      const int64_t at = r * dims.channels + c;
      const double normal = (static_cast<double>(x[at]) - mean[c]) * inverse[c];
      y[at] = static_cast<float>(normal * scale[c] + shift[c]);
    }
  }
}

void ReferenceNorm::BatchNormBackwardSums(const RowsDims& dims, ConstValues x_values,
                                          ConstValues dy_values, std::span<const float> mean,
                                          std::span<const float> inverse, std::span<double> sums) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  CheckChannels(dims, {mean, inverse});
  std::fill(sums.begin(), sums.end(), 0);
  for (int64_t r = 0; r < dims.rows; ++r) {
    for (int64_t c = 0; c < dims.channels; ++c) {
      const int64_t at = r * dims.channels + c;
      const double normal = (static_cast<double>(x[at]) - mean[c]) * inverse[c];
      sums[c] += dy[at];
      sums[dims.channels + c] += dy[at] * normal;
    }
  }
}

void ReferenceNorm::BatchNormBackward(const RowsDims& dims, ConstValues x_values,
                                      ConstValues dy_values, std::span<const float> mean,
                                      std::span<const float> inverse, std::span<const float> scale,
                                      std::span<const float> mean_dy,
                                      std::span<const float> mean_dy_x, Values dx_values) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, mean_dy, mean_dy_x});
  for (int64_t r = 0; r < dims.rows; ++r) {
    for (int64_t c = 0; c < dims.channels; ++c) {
      const int64_t at = r * dims.channels + c;
      const double normal = (static_cast<double>(x[at]) - mean[c]) * inverse[c];
      const double inner = static_cast<double>(dy[at]) - mean_dy[c] - normal * mean_dy_x[c];
      dx[at] = static_cast<float>(static_cast<double>(scale[c]) * inverse[c] * inner);
    }
  }
}

void ReferenceNorm::LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x_values,
                                     std::span<const float> scale, std::span<const float> shift,
                                     Values y_values, std::span<float> mean,
                                     std::span<float> inverse) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {scale, shift});
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  // Rows without channels have mean and variance 0.
  const auto count = static_cast<double>(std::max<int64_t>(1, dims.channels));
  for (int64_t r = 0; r < dims.rows; ++r) {
    const auto row = x.subspan(r * dims.channels, dims.channels);
    double sum = 0;
    for (const float value : row) sum += value;
    const double average = sum / count;
    double squares = 0;
    for (const float value : row) squares += (value - average) * (value - average);
    const double factor = 1 / std::sqrt(squares / count + epsilon);
    for (int64_t c = 0; c < dims.channels; ++c) {
      y[r * dims.channels + c] =
          static_cast<float>((row[c] - average) * factor * scale[c] + shift[c]);
    }
    mean[r] = static_cast<float>(average);
    inverse[r] = static_cast<float>(factor);
  }
}

void ReferenceNorm::LayerNormBackward(const RowsDims& dims, ConstValues x_values,
                                      ConstValues dy_values, std::span<const float> mean,
                                      std::span<const float> inverse, std::span<const float> scale,
                                      Values dx_values, std::span<float> dscale,
                                      std::span<float> dshift) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {scale, dscale, dshift});
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  const int64_t channels = dims.channels;
  std::vector<double> scale_sums(dscale.size());
  std::vector<double> shift_sums(dshift.size());
  std::vector<double> normal(channels);
  for (int64_t r = 0; r < dims.rows; ++r) {
    // Of scale * dy, and of scale * dy * normal.
    double sum = 0;
    double product_sum = 0;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t at = r * channels + c;
      normal[c] = (static_cast<double>(x[at]) - mean[r]) * inverse[r];
      sum += static_cast<double>(scale[c]) * dy[at];
      product_sum += static_cast<double>(scale[c]) * dy[at] * normal[c];
      scale_sums[c] += dy[at] * normal[c];
      shift_sums[c] += dy[at];
    }
    const auto count = static_cast<double>(channels);
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t at = r * channels + c;
      const double inner =
          static_cast<double>(scale[c]) * dy[at] - sum / count - normal[c] * product_sum / count;
      dx[at] = static_cast<float>(inverse[r] * inner);
    }
  }
  Store(scale_sums, dscale);
  Store(shift_sums, dshift);
}

void ReferenceNorm::LrnForward(const LrnDims& dims, ConstValues x_values, Values y_values,
                               std::span<float> d) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  const double factor = static_cast<double>(dims.alpha) / static_cast<double>(dims.size);
  for (int64_t r = 0; r < dims.rows; ++r) {
    const int64_t row = r * dims.channels;
    for (int64_t c = 0; c < dims.channels; ++c) {
      const auto [first, end] = AroundOf(dims, c);
      double squares = 0;
      for (int64_t i = first; i < end; ++i) {
        squares += static_cast<double>(x[row + i]) * x[row + i];
      }
      const double divisor = dims.k + factor * squares;
      d[row + c] = static_cast<float>(divisor);
      y[row + c] = static_cast<float>(x[row + c] * std::pow(divisor, -dims.beta));
    }
  }
}

// y[j] depends on x[c] through its numerator where j = c, and through d[j] where c is around j.
void ReferenceNorm::LrnBackward(const LrnDims& dims, ConstValues x_values, std::span<const float> d,
                                ConstValues dy_values, Values dx_values) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  const double factor = static_cast<double>(dims.alpha) / static_cast<double>(dims.size);
  const double beta = dims.beta;
  std::vector<double> sums(dx.size());
  for (int64_t r = 0; r < dims.rows; ++r) {
    const int64_t row = r * dims.channels;
    for (int64_t c = 0; c < dims.channels; ++c) {
      const double divisor = d[row + c];
      sums[row + c] += dy[row + c] * std::pow(divisor, -beta);
      const double through_divisor =
          dy[row + c] * static_cast<double>(x[row + c]) * -beta * std::pow(divisor, -beta - 1);
      const auto [first, end] = AroundOf(dims, c);
      for (int64_t i = first; i < end; ++i) {
        sums[row + i] += through_divisor * 2 * factor * x[row + i];
      }
    }
  }
  Store(sums, dx);
}

}  // namespace cadre
