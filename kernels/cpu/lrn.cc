// Local response normalisation across channels (Krizhevsky, Sutskever and Hinton 2012).
//
// With d = k + alpha / size * (sum of x^2 over the window around a channel), y = x d^-beta. The
// windows of neighbouring channels overlap; a padded copy of the row turns their sums into `size`
// shifted vector additions, without branches at the borders. Backward has the same form: with
// share[j] = dy[j] x[j] d[j]^(-beta - 1), dx[c] = dy[c] d[c]^-beta - 2 alpha beta / size x[c] (sum
// of share[j] over the windows j that contain c), and these windows mirror forward's.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// power[c] = d[c]^-beta.
CADRE_VECTOR_LOOP void Powers(int64_t n, float beta, const float* __restrict d,
                              float* __restrict power) {
  if (beta == 0.75F) {  // the usual exponent: two square roots
    for (int64_t c = 0; c < n; ++c) {
      const float root = __builtin_sqrtf(d[c]);
      power[c] = 1.0F / (root * __builtin_sqrtf(root));
    }
  } else {
    for (int64_t c = 0; c < n; ++c) power[c] = std::pow(d[c], -beta);
  }
}

// to[c] = first + factor * (from[c] + ... + from[c + size - 1]).
CADRE_VECTOR_LOOP void SlidingSums(int64_t n, int64_t size, float first, float factor,
                                   const float* __restrict from, float* __restrict to) {
  for (int64_t c = 0; c < n; ++c) to[c] = from[c];
  for (int64_t i = 1; i < size; ++i) {
    for (int64_t c = 0; c < n; ++c) to[c] += from[c + i];
  }
  for (int64_t c = 0; c < n; ++c) to[c] = first + factor * to[c];
}

CADRE_VECTOR_LOOP void Multiply(int64_t n, const float* __restrict a, const float* __restrict b,
                                float* __restrict product) {
  for (int64_t c = 0; c < n; ++c) product[c] = a[c] * b[c];
}

// shares = dy * x * power / d: the gradient of the sum under the power.
CADRE_VECTOR_LOOP void Shares(int64_t n, const float* __restrict x, const float* __restrict d,
                              const float* __restrict dy, const float* __restrict power,
                              float* __restrict shares) {
  for (int64_t c = 0; c < n; ++c) shares[c] = dy[c] * x[c] * power[c] / d[c];
}

// dx = dy * power + x * sums.
CADRE_VECTOR_LOOP void Combine(int64_t n, const float* __restrict x, const float* __restrict dy,
                               const float* __restrict power, const float* __restrict sums,
                               float* __restrict dx) {
  for (int64_t c = 0; c < n; ++c) dx[c] = dy[c] * power[c] + x[c] * sums[c];
}

// A row with zeros before and after it, and two more for intermediate results.
struct RowBuffers {
  RowBuffers(int64_t channels, int64_t before, int64_t after)
      : padded(before + channels + after),
        row(padded.data() + before),
        power(channels),
        sums(channels) {}

  std::vector<float> padded;
  float* row;
  std::vector<float> power, sums;
};

}  // namespace

void CpuNorm::LrnForward(const LrnDims& dims, ConstValues x_values, Values y_values,
                         std::span<float> d) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  const int64_t n = dims.channels;
  ForParts(cpu_.threads, dims.rows, n * dims.size, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(n, dims.size / 2, (dims.size - 1) / 2);
    for (int64_t at = begin * n; at < end * n; at += n) {
      Multiply(n, x.data() + at, x.data() + at, buffers.row);
      SlidingSums(n, dims.size, dims.k, dims.alpha / static_cast<float>(dims.size),
                  buffers.padded.data(), d.data() + at);
      Powers(n, dims.beta, d.data() + at, buffers.power.data());
      Multiply(n, x.data() + at, buffers.power.data(), y.data() + at);
    }
  });
}

void CpuNorm::LrnBackward(const LrnDims& dims, ConstValues x_values, std::span<const float> d,
                          ConstValues dy_values, Values dx_values) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("d", d.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  const int64_t n = dims.channels;
  const float factor = -2 * dims.alpha * dims.beta / static_cast<float>(dims.size);
  ForParts(cpu_.threads, dims.rows, n * dims.size, [&](int64_t begin, int64_t end) {
    // Channel c is in the windows of the channels (size - 1) / 2 before to size / 2 after it.
    RowBuffers buffers(n, (dims.size - 1) / 2, dims.size / 2);
    for (int64_t at = begin * n; at < end * n; at += n) {
      Powers(n, dims.beta, d.data() + at, buffers.power.data());
      Shares(n, x.data() + at, d.data() + at, dy.data() + at, buffers.power.data(), buffers.row);
      SlidingSums(n, dims.size, 0, factor, buffers.padded.data(), buffers.sums.data());
      Combine(n, x.data() + at, dy.data() + at, buffers.power.data(), buffers.sums.data(),
              dx.data() + at);
    }
  });
}

}  // namespace cadre
