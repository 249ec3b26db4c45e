// Layer norm: statistics of each row.
#include <cmath>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

struct Statistics {
  float mean, inverse;
};

CADRE_VECTOR_LOOP Statistics NormaliseRow(int64_t n, float epsilon, const float* x,
                                          const float* scale, const float* shift, float* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += static_cast<double>(x[c]);
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < n; ++c) {
    squares += static_cast<double>((x[c] - mean) * (x[c] - mean));
  }
  const auto inverse = static_cast<float>(
      1 / __builtin_sqrt(squares / static_cast<double>(n) + static_cast<double>(epsilon)));
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) y[c] = (x[c] - mean) * inverse * scale[c] + shift[c];
  return {mean, inverse};
}

// Also adds the row's share to the sums for scale and shift.
CADRE_VECTOR_LOOP void DenormaliseRow(int64_t n, Statistics s, const float* __restrict x,
                                      const float* dy, const float* __restrict scale, float* dx,
                                      double* __restrict dscale, double* __restrict dshift) {
  double sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t c = 0; c < n; ++c) {
    const float normal = (x[c] - s.mean) * s.inverse;
    const float g = dy[c] * scale[c];
    sum += static_cast<double>(g);
    product += static_cast<double>(g * normal);
    dscale[c] += static_cast<double>(dy[c] * normal);
    dshift[c] += static_cast<double>(dy[c]);
  }
  const auto mean_g = static_cast<float>(sum / static_cast<double>(n));
  const auto mean_product = static_cast<float>(product / static_cast<double>(n));
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    const float normal = (x[c] - s.mean) * s.inverse;
    dx[c] = s.inverse * (dy[c] * scale[c] - mean_g - normal * mean_product);
  }
}

}  // namespace

void CpuNorm::LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x_values,
                               std::span<const float> scale, std::span<const float> shift,
                               Values y_values, std::span<float> mean, std::span<float> inverse) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("scale", scale.size(), dims.channels);
  CheckSize("shift", shift.size(), dims.channels);
  CheckSize("y", y.size(), SizeOf(dims));
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  const int64_t n = dims.channels;
  if (n == 0) {
    cpu_.reference->norm().LayerNormForward(dims, epsilon, x, scale, shift, y, mean, inverse);
    return;
  }
  ForParts(cpu_.threads, dims.rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Statistics s =
          NormaliseRow(n, epsilon, x.data() + r * n, scale.data(), shift.data(), y.data() + r * n);
      mean[r] = s.mean;
      inverse[r] = s.inverse;
    }
  });
}

void CpuNorm::LayerNormBackward(const RowsDims& dims, ConstValues x_values, ConstValues dy_values,
                                std::span<const float> mean, std::span<const float> inverse,
                                std::span<const float> scale, Values dx_values,
                                std::span<float> dscale, std::span<float> dshift) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("mean", mean.size(), dims.rows);
  CheckSize("inverse", inverse.size(), dims.rows);
  CheckSize("scale", scale.size(), dims.channels);
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckSize("dscale", dscale.size(), dims.channels);
  CheckSize("dshift", dshift.size(), dims.channels);
  const int64_t n = dims.channels;
  std::vector<double> sums(2 * n);
  SumByThread(cpu_.threads, dims.rows, n, sums, [&](int64_t begin, int64_t end, double* to) {
    for (int64_t r = begin; r < end; ++r) {
      const auto at = static_cast<size_t>(r);
      DenormaliseRow(n, {mean[at], inverse[at]}, x.data() + r * n, dy.data() + r * n, scale.data(),
                     dx.data() + r * n, to, to + n);
    }
  });
  for (size_t c = 0; c < dscale.size(); ++c) {
    dscale[c] = static_cast<float>(sums[c]);
    dshift[c] = static_cast<float>(sums[dscale.size() + c]);
  }
}

}  // namespace cadre
