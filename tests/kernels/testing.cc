#include "tests/kernels/testing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace cadre {

Floats Uniform(int64_t n, uint64_t seed) {
  Floats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 2 * RandomUniform(seed, RandomStream::kTest, 0, i) - 1;
  }
  return values;
}

Floats Eighths(int64_t n, uint64_t seed) {
  Floats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(Draw(-8, 8, seed, i)) / 8;
  }
  return values;
}

Floats Shuffled(int64_t n, uint64_t seed) {
  Floats values;
  for (const uint32_t value :
       RandomPermutation(seed, RandomStream::kTest, 2, static_cast<uint64_t>(n))) {
    values.push_back(static_cast<float>(value));
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

int64_t Draw(int64_t low, int64_t high, uint64_t seed, uint64_t counter) {
  const auto choices = static_cast<uint64_t>(high - low + 1);
  return low + static_cast<int64_t>(RandomBits(seed, RandomStream::kTest, 1, counter) % choices);
}

int64_t WindowsAlong(int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                     int64_t padding_on_both_sides) {
  const int64_t room = in + padding_on_both_sides - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

WindowDims Fitted(WindowDims w, int64_t pad_bottom, int64_t pad_right) {
  w.out_height =
      WindowsAlong(w.in_height, w.kernel_height, w.stride, w.dilation, w.pad_top + pad_bottom);
  w.out_width =
      WindowsAlong(w.in_width, w.kernel_width, w.stride, w.dilation, w.pad_left + pad_right);
  return w;
}

WindowDims Window(int64_t height, int64_t width, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t dilation) {
  return Fitted({.in_height = height,
                 .in_width = width,
                 .kernel_height = kernel,
                 .kernel_width = kernel,
                 .stride = stride,
                 .dilation = dilation,
                 .pad_top = padding,
                 .pad_left = padding},
                padding, padding);
}

ConvolutionDims Convolution(int64_t batch, int64_t in_channels, int64_t out_channels,
                            const WindowDims& window, int64_t groups) {
  return {.batch = batch,
          .in_channels = in_channels,
          .out_channels = out_channels,
          .groups = groups,
          .window = window};
}

PoolingDims Pooling(PoolKind kind, int64_t batch, int64_t channels, const WindowDims& window) {
  return {.kind = kind, .batch = batch, .channels = channels, .window = window};
}

void PrintTo(const WindowDims& d, std::ostream* out) {
  *out << absl::StrCat(d.in_height, "x", d.in_width, " to ", d.out_height, "x", d.out_width,
                       ", kernel ", d.kernel_height, "x", d.kernel_width, ", stride ", d.stride,
                       ", dilation ", d.dilation, ", padding ", d.pad_top, " above, ", d.pad_left,
                       " left");
}

void PrintTo(const ConvolutionDims& d, std::ostream* out) {
  *out << absl::StrCat("batch ", d.batch, ", channels ", d.in_channels, " to ", d.out_channels,
                       ", groups ", d.groups, ", ");
  PrintTo(d.window, out);
}

void PrintTo(const PoolingDims& d, std::ostream* out) {
  *out << absl::StrCat("kind ", static_cast<int>(d.kind), ", batch ", d.batch, ", channels ",
                       d.channels, ", ");
  PrintTo(d.window, out);
}

void PrintTo(const FullyConnectedDims& d, std::ostream* out) {
  *out << absl::StrCat("batch ", d.batch, ", ", d.in, " to ", d.out);
}

void PrintTo(const AttentionDims& d, std::ostream* out) {
  *out << absl::StrCat("batch ", d.batch, ", tokens ", d.tokens, ", heads ", d.heads, ", features ",
                       d.head_features, d.causal ? ", causal" : "");
}

void PrintTo(const BackEnd& back_end, std::ostream* out) { *out << back_end.name; }

std::string NameOf(const ::testing::TestParamInfo<BackEnd>& info) { return info.param.name; }

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

void ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = tolerance * std::max(1.0, std::abs(static_cast<double>(want[i])));
    ASSERT_NEAR(got[i], want[i], bound) << "element " << i;
  }
}

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void ExpectGradient(Floats& values, const Floats& gradient, const Floats& dy,
                    const std::function<Floats()>& forward) {
  constexpr float kStep = 0x1.0p-7F;
  constexpr int kDirections = 4;
  ASSERT_EQ(values.size(), gradient.size());
  const Floats before = values;
  const auto n = static_cast<int64_t>(values.size());
  // Rounding of the outputs, and of statistics in fp32 that they were made from.
  const double noise = 8 * 0x1.0p-24 * Dot(Absolute(forward()), Absolute(dy));
  for (uint64_t seed = 100; seed < 100 + kDirections; ++seed) {
    const Floats direction = Uniform(n, seed);
    const auto move = [&](float step) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = before[i] + step * direction[i];
      return values;
    };
    const Floats above = move(kStep);
    const double loss_above = Dot(forward(), dy);
    const Floats below = move(-kStep);
    const double loss_below = Dot(forward(), dy);
    double predicted = 0;
    double magnitude = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double term = static_cast<double>(gradient[i]) * (above[i] - below[i]);
      predicted += term;
      magnitude += std::abs(term);
    }
    EXPECT_NEAR(loss_above - loss_below, predicted, 1e-3 * magnitude + noise);
  }
  values = before;
}

}  // namespace cadre
