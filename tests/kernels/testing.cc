#include "tests/kernels/testing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "kernels/extents.h"

namespace cadre {

Floats Uniform(int64_t n, uint64_t seed) {
  Floats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 2 * RandomUniform(seed, RandomStream::kTest, 0, i) - 1;
  }
  return values;
}

Floats SmallIntegers(int64_t n, uint64_t seed) {
  Floats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(static_cast<int>(RandomBits(seed, RandomStream::kTest, 1, i) % 9) - 4);
  }
  return values;
}

Floats Absolute(const Floats& values) {
  Floats result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = std::abs(values[i]);
  return result;
}

Floats Garbage(int64_t n) {
  return Floats(static_cast<size_t>(n), std::numeric_limits<float>::quiet_NaN());
}

ConvolutionDims Convolution(int64_t batch, int64_t in_channels, int64_t height, int64_t width,
                            int64_t out_channels, int64_t kernel, int64_t stride, int64_t padding) {
  return {.batch = batch,
          .in_channels = in_channels,
          .in_height = height,
          .in_width = width,
          .out_channels = out_channels,
          .out_height = WindowsAlong(height, kernel, stride, padding),
          .out_width = WindowsAlong(width, kernel, stride, padding),
          .kernel = kernel,
          .stride = stride,
          .padding = padding};
}

PoolingDims Pooling(PoolKind kind, int64_t batch, int64_t channels, int64_t height, int64_t width,
                    int64_t kernel, int64_t stride, int64_t padding) {
  return {.kind = kind,
          .batch = batch,
          .channels = channels,
          .in_height = height,
          .in_width = width,
          .out_height = WindowsAlong(height, kernel, stride, padding),
          .out_width = WindowsAlong(width, kernel, stride, padding),
          .kernel = kernel,
          .stride = stride,
          .padding = padding};
}

void ExpectSumsNear(std::span<const float> got, std::span<const float> want,
                    std::span<const float> magnitude, int64_t terms) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_EQ(got.size(), magnitude.size());
  const double units = static_cast<double>(terms + 1) * 0x1.0p-24;
  for (size_t i = 0; i < got.size(); ++i) {
    // A smallest bound for sums without terms or of tiny ones.
    const double bound = units / (1 - units) * magnitude[i] + 1e-30;
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want[i]), bound)
        << "element " << i << ": " << got[i] << " for " << want[i];
  }
}

}  // namespace cadre
