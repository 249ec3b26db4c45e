#include "tests/kernels/testing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "kernels/extents.h"

namespace cadre {

namespace {

// The maximum numbers of terms in a sum of y, of dx and of dw.
struct Terms {
  int64_t y, dx, dw;
};
Terms TermsOf(const ConvolutionDims& d) {
  const int64_t taps = d.window.kernel_height * d.window.kernel_width;
  return {d.in_channels / d.groups * taps + 1, d.out_channels / d.groups * taps,
          d.batch * d.window.out_height * d.window.out_width};
}
Terms TermsOf(const FullyConnectedDims& d) { return {d.in + 1, d.out, d.batch}; }

LayerOutputs OutputsFor(const LayerSizes& sizes, const Floats& b) {
  return {.y = Garbage(sizes.y),
          .dx = Garbage(sizes.x),
          .dw = Garbage(sizes.w),
          .db = Garbage(std::ssize(b))};
}

// Inputs of a layer, drawn by `make`.
struct LayerInputs {
  Floats x, w, b, dy;
};
LayerInputs InputsFor(const LayerSizes& sizes, Floats (*make)(int64_t, uint64_t)) {
  return {make(sizes.x, 1), make(sizes.w, 2), make(sizes.b, 3), make(sizes.y, 4)};
}

template <typename Dims>
LayerOutputs Run(Backend& kernels, const Dims& dims, const LayerInputs& in) {
  return RunLayer(kernels, dims, in.x, in.w, in.b, in.dy);
}

}  // namespace

Floats Uniform(int64_t n, uint64_t seed) {
  Floats values(n);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 2 * RandomUniform(seed, RandomStream::kTest, 0, i) - 1;
  }
  return values;
}

Floats Eighths(int64_t n, uint64_t seed) {
  Floats values(n);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Draw(-8, 8, seed, i) / 8.0F;
  }
  return values;
}

Floats Shuffled(int64_t n, uint64_t seed) {
  Floats values;
  for (const uint32_t value : RandomPermutation(seed, RandomStream::kTest, 2, n)) {
    values.push_back(value);
  }
  return values;
}

Floats Absolute(const Floats& values) {
  Floats result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = std::abs(values[i]);
  return result;
}

Floats Garbage(int64_t n) { return Floats(n, std::numeric_limits<float>::quiet_NaN()); }

Floats RandomIds(int64_t n, int64_t below) {
  Floats ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(Draw(0, below - 1, 9, i));
  return ids;
}

std::vector<int32_t> RandomLabels(int64_t n, int64_t below) {
  const Floats ids = RandomIds(n, below);
  return {ids.begin(), ids.end()};
}

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::isnan(value) ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

Floats Bf16Rounded(Floats values) {
  for (float& value : values) value = FromBf16(ToBf16(value));
  return values;
}

int64_t Draw(int64_t low, int64_t high, uint64_t seed, uint64_t counter) {
  const uint64_t choices = high - low + 1;
  const int64_t choice = RandomBits(seed, RandomStream::kTest, 1, counter) % choices;
  return low + choice;
}

int64_t WindowsAlong(int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                     int64_t padding_on_both_sides) {
  const int64_t room = in + padding_on_both_sides - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

WindowDims Fitted(WindowDims w, int64_t pad_bottom, int64_t pad_right) {
  w.out_height = WindowsAlong(w.in_height, w.kernel_height, w.stride_height, w.dilation,
                              w.pad_top + pad_bottom);
  w.out_width =
      WindowsAlong(w.in_width, w.kernel_width, w.stride_width, w.dilation, w.pad_left + pad_right);
  return w;
}

WindowDims Window(int64_t height, int64_t width, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t dilation) {
  return Fitted({.in_height = height,
                 .in_width = width,
                 .kernel_height = kernel,
                 .kernel_width = kernel,
                 .stride_height = stride,
                 .stride_width = stride,
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

std::vector<ConvolutionDims> UnusualConvolutions() {
  const auto oblong = [](int64_t height, int64_t width, int64_t kernel_height, int64_t kernel_width,
                         int64_t stride, int64_t pad_top, int64_t pad_left) {
    return WindowDims{.in_height = height,
                      .in_width = width,
                      .kernel_height = kernel_height,
                      .kernel_width = kernel_width,
                      .stride_height = stride,
                      .stride_width = stride,
                      .pad_top = pad_top,
                      .pad_left = pad_left};
  };
  return {
      // Kernels of one row, of one column, and oblong.
      Convolution(2, 3, 5, Fitted(oblong(6, 9, 1, 7, 1, 0, 3), 0, 3)),
      Convolution(2, 16, 32, Fitted(oblong(9, 6, 7, 1, 1, 3, 0), 3, 0)),
      Convolution(1, 4, 3, Fitted(oblong(7, 8, 2, 5, 2, 1, 2), 0, 1)),
      // Padding at one end only, as for a rank with a part of the image.
      Convolution(2, 16, 16, Fitted(oblong(5, 8, 3, 3, 1, 1, 1), 0, 1)),
      Convolution(2, 16, 16, Fitted(oblong(5, 8, 3, 3, 1, 0, 1), 1, 1)),
      Convolution(2, 3, 16, Fitted(oblong(9, 12, 7, 7, 2, 3, 3), 0, 2)),
      // Rows and columns that no window reaches.
      Convolution(2, 3, 4,
                  {.in_height = 9,
                   .in_width = 9,
                   .out_height = 3,
                   .out_width = 2,
                   .kernel_height = 3,
                   .kernel_width = 3}),
      Convolution(2, 16, 6, Window(6, 6, 1, 3)),
      // Outputs whose windows lie entirely beyond the edge.
      Convolution(1, 2, 3,
                  {.in_height = 1,
                   .in_width = 2,
                   .out_height = 5,
                   .out_width = 6,
                   .kernel_height = 2,
                   .kernel_width = 2,
                   .pad_top = 3,
                   .pad_left = 2}),
      // Dilation, groups, and one group for each channel.
      Convolution(2, 5, 7, Window(11, 10, 3, 1, 2, 2)),
      Convolution(1, 8, 8, Window(13, 9, 3, 2, 3, 3)),
      Convolution(2, 6, 9, Window(5, 5, 3, 1, 1), 3),
      Convolution(2, 32, 64, Window(5, 6, 3, 1, 1), 2),
      Convolution(2, 17, 17, Window(7, 7, 3, 2, 1), 17),
      Convolution(2, 32, 32, Window(7, 7, 3, 1, 1), 32),
      Convolution(1, 4, 8, Window(9, 9, 3, 1, 2, 2), 4),
      // Strides larger than the kernel, windows larger than the image.
      Convolution(2, 8, 9, Window(10, 8, 2, 3)),
      Convolution(2, 4, 5, Window(2, 3, 5, 1, 2)),
      Convolution(1, 8, 8, Window(7, 7, 7)),
  };
}

void PrintTo(const WindowDims& d, std::ostream* out) {
  *out << absl::StrCat(d.in_height, "x", d.in_width, " to ", d.out_height, "x", d.out_width,
                       ", kernel ", d.kernel_height, "x", d.kernel_width, ", stride ",
                       d.stride_height, "x", d.stride_width, ", dilation ", d.dilation,
                       ", padding ", d.pad_top, " above, ", d.pad_left, " left");
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
                       d.head_features, d.causal ? ", causal" : "",
                       d.padding_token == AttentionDims::kNoPadding ? "" : ", padding");
}

void PrintTo(const BackEnd& back_end, std::ostream* out) { *out << back_end.name; }

std::string NameOf(const ::testing::TestParamInfo<BackEnd>& info) { return info.param.name; }

void ExpectSumsNear(std::span<const float> got, std::span<const float> want,
                    std::span<const float> magnitude, int64_t terms) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_EQ(got.size(), magnitude.size());
  const double units = (terms + 1) * 0x1.0p-24;
  for (size_t i = 0; i < got.size(); ++i) {
    // 1e-30 is the bound for sums without terms or of tiny ones.
    const double bound = units / (1 - units) * magnitude[i] + 1e-30;
    ASSERT_LE(std::abs(double{got[i]} - want[i]), bound)
        << "element " << i << ": " << got[i] << " for " << want[i];
  }
}

void ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = tolerance * std::max(1.0F, std::abs(want[i]));
    ASSERT_NEAR(got[i], want[i], bound) << "element " << i;
  }
}

LayerOutputs RunLayer(Backend& kernels, const ConvolutionDims& dims, const Floats& x,
                      const Floats& w, const Floats& b, const Floats& dy) {
  LayerOutputs out = OutputsFor(SizesOf(dims), b);
  kernels.window().ConvolutionForward(dims, x, w, b, out.y);
  kernels.window().ConvolutionBackwardData(dims, dy, w, out.dx);
  kernels.window().ConvolutionBackwardWeights(dims, x, dy, out.dw, out.db);
  return out;
}

LayerOutputs RunLayer(Backend& kernels, const FullyConnectedDims& dims, const Floats& x,
                      const Floats& w, const Floats& b, const Floats& dy) {
  LayerOutputs out = OutputsFor(SizesOf(dims), b);
  kernels.dense().FullyConnectedForward(dims, x, w, b, out.y);
  kernels.dense().FullyConnectedBackwardData(dims, dy, w, out.dx);
  kernels.dense().FullyConnectedBackwardWeights(dims, x, dy, out.dw, out.db);
  return out;
}

PoolingOutputs RunPooling(Backend& kernels, const PoolingDims& dims, const Floats& x,
                          const Floats& dy) {
  const LayerSizes sizes = SizesOf(dims);
  PoolingOutputs out{.y = Garbage(sizes.y), .dx = Garbage(sizes.x)};
  if (dims.kind == PoolKind::kMax) out.argmax.assign(sizes.y, -7);
  kernels.window().PoolingForward(dims, x, out.y, out.argmax);
  kernels.window().PoolingBackward(dims, dy, out.argmax, out.dx);
  return out;
}

AttentionOutputs RunAttention(Backend& kernels, const AttentionDims& dims, const Floats& qkv,
                              const Floats& dcontext, const Floats& ids) {
  const AttentionSizes sizes = SizesOf(dims);
  AttentionOutputs out{.context = Garbage(sizes.context),
                       .statistics = Garbage(sizes.statistics),
                       .dqkv = Garbage(sizes.qkv)};
  kernels.dense().AttentionForward(dims, ids, qkv, out.context, out.statistics, {});
  kernels.dense().AttentionBackward(dims, ids, qkv, out.context, dcontext, out.statistics, {},
                                    out.dqkv);
  return out;
}

LayerNormOutputs RunLayerNorm(Backend& kernels, const RowsDims& dims, const Floats& x,
                              const Floats& scale, const Floats& shift, const Floats& dy) {
  LayerNormOutputs out{.y = Garbage(SizeOf(dims)),
                       .mean = Garbage(dims.rows),
                       .inverse = Garbage(dims.rows),
                       .dx = Garbage(SizeOf(dims)),
                       .dscale = Garbage(dims.channels),
                       .dshift = Garbage(dims.channels)};
  kernels.norm().LayerNormForward(dims, 1e-5F, x, scale, shift, out.y, out.mean, out.inverse);
  kernels.norm().LayerNormBackward(dims, x, dy, out.mean, out.inverse, scale, out.dx, out.dscale,
                                   out.dshift);
  return out;
}

LrnOutputs RunLrn(Backend& kernels, const LrnDims& dims, const Floats& x, const Floats& dy) {
  LrnOutputs out{
      .y = Garbage(SizeOf(dims)), .d = Garbage(SizeOf(dims)), .dx = Garbage(SizeOf(dims))};
  kernels.norm().LrnForward(dims, x, out.y, out.d);
  kernels.norm().LrnBackward(dims, x, out.d, dy, out.dx);
  return out;
}

void ExpectEqual(const LayerOutputs& got, const LayerOutputs& want) {
  EXPECT_EQ(got.y, want.y);
  EXPECT_EQ(got.dx, want.dx);
  EXPECT_EQ(got.dw, want.dw);
  EXPECT_EQ(got.db, want.db);
}

template <typename Dims>
void ExpectLayerNearReference(Backend& kernels, const Dims& dims) {
  const auto reference = MakeReferenceBackend();
  const LayerInputs in = InputsFor(SizesOf(dims), Uniform);
  const LayerOutputs got = Run(kernels, dims, in), want = Run(*reference, dims, in);
  const LayerOutputs magnitude =
      Run(*reference, dims, {Absolute(in.x), Absolute(in.w), Absolute(in.b), Absolute(in.dy)});
  const Terms terms = TermsOf(dims);
  ExpectSumsNear(got.y, want.y, magnitude.y, terms.y);
  ExpectSumsNear(got.dx, want.dx, magnitude.dx, terms.dx);
  ExpectSumsNear(got.dw, want.dw, magnitude.dw, terms.dw);
  ExpectSumsNear(got.db, want.db, magnitude.db, terms.dw);
}

template <typename Dims>
void ExpectLayerExact(Backend& kernels, const Dims& dims, bool with_bias) {
  LayerInputs in = InputsFor(SizesOf(dims), Eighths);
  if (!with_bias) in.b.clear();
  ExpectEqual(Run(kernels, dims, in), Run(*MakeReferenceBackend(), dims, in));
}

template <typename Dims>
void ExpectLayerRepeats(Backend& cpu, const Dims& dims) {
  const LayerInputs in = InputsFor(SizesOf(dims), Uniform);
  const LayerOutputs first = Run(cpu, dims, in);
  ExpectEqual(Run(cpu, dims, in), first);
  ExpectEqual(Run(*MakeCpuBackend(1), dims, in), first);
}

std::vector<double> Sums(const Floats& a, const Floats& b) {
  std::vector<double> sums(a.begin(), a.end());
  sums.insert(sums.end(), b.begin(), b.end());
  return sums;
}

void ExpectFusedBatchNormEqualsSeparate(Backend& kernels, const RowsDims& dims) {
  NormKernels& norm = kernels.norm();
  const int64_t n = SizeOf(dims), channels = dims.channels;
  const Floats x = Uniform(n, 1), dy = Uniform(n, 2), residual = Uniform(n, 3),
               residual_dy = Uniform(n, 4), mean = Uniform(channels, 5),
               inverse = Absolute(Uniform(channels, 6)), scale = Uniform(channels, 7),
               shift = Uniform(channels, 8);
  for (const bool adds : {false, true}) {
    SCOPED_TRACE(::testing::Message() << dims.rows << " rows of " << channels << ", " << adds);
    const Floats addend = adds ? residual : Floats(), other_dy = adds ? residual_dy : Floats();
    Floats want_y = Garbage(n);
    norm.BatchNormForward(dims, x, mean, inverse, scale, shift, {}, {}, want_y);
    if (adds) kernels.pointwise().Add(addend, want_y);
    kernels.pointwise().ActivationForward(Activation::kRelu, want_y, want_y);
    Floats y = Garbage(n);
    std::vector<int32_t> positive(PositiveWords(dims), -1);
    norm.BatchNormForward(dims, x, mean, inverse, scale, shift, addend, positive, y);
    ASSERT_EQ(y, want_y);
    for (int64_t row = 0; row < dims.rows; ++row) {
      for (int64_t c = 0; c < channels; ++c) {
        const uint32_t word = positive[row / 32 * channels + c];
        ASSERT_EQ(word >> (row % 32) & 1, y[row * channels + c] > 0 ? 1 : 0) << row << ", " << c;
      }
    }
    Floats in_place = adds ? addend : x;
    if (adds) {
      norm.BatchNormForward(dims, x, mean, inverse, scale, shift, in_place, positive, in_place);
    } else {
      norm.BatchNormForward(dims, in_place, mean, inverse, scale, shift, {}, positive, in_place);
    }
    ASSERT_EQ(in_place, want_y);

    Floats want_total = dy, want_dx = Garbage(n), total = dy, dx = Garbage(n);
    std::vector<double> want_sums(2 * channels, NAN), sums = want_sums;
    if (adds) kernels.pointwise().Add(other_dy, want_total);
    kernels.pointwise().ActivationBackward(Activation::kRelu, y, want_total, want_total);
    Floats dscale = Garbage(channels), dshift = dscale;
    norm.BatchNormBackwardSums(dims, x, want_total, {}, {}, mean, inverse, {}, want_sums, dscale,
                               dshift);
    const std::vector<double> means = Sums(shift, mean);
    norm.BatchNormBackward(dims, x, want_total, {}, mean, inverse, scale, 1, means, want_dx);
    norm.BatchNormBackwardSums(dims, x, total, other_dy, positive, mean, inverse, total, sums,
                               dscale, dshift);
    ASSERT_EQ(total, want_total);
    ASSERT_EQ(sums, want_sums);
    if (adds) continue;
    // Without a stored gradient.
    norm.BatchNormBackwardSums(dims, x, dy, {}, positive, mean, inverse, {}, sums, dscale, dshift);
    ASSERT_EQ(sums, want_sums);
    norm.BatchNormBackward(dims, x, dy, positive, mean, inverse, scale, 1, means, dx);
    ASSERT_EQ(dx, want_dx);
  }
}

template <typename Dims>
void ExpectLayerGradients(const Dims& dims) {
  const auto reference = MakeReferenceBackend();
  const LayerSizes sizes = SizesOf(dims);
  Floats x = Uniform(sizes.x, 1), w = Uniform(sizes.w, 2), b = Uniform(sizes.b, 3);
  const Floats dy = Uniform(sizes.y, 4);
  const LayerOutputs out = RunLayer(*reference, dims, x, w, b, dy);
  const auto forward = [&] { return RunLayer(*reference, dims, x, w, b, dy).y; };
  ExpectGradient(x, out.dx, dy, forward);
  ExpectGradient(w, out.dw, dy, forward);
  ExpectGradient(b, out.db, dy, forward);
}

template void ExpectLayerGradients(const ConvolutionDims&);
template void ExpectLayerGradients(const FullyConnectedDims&);
template void ExpectLayerNearReference(Backend&, const ConvolutionDims&);
template void ExpectLayerNearReference(Backend&, const FullyConnectedDims&);
template void ExpectLayerExact(Backend&, const ConvolutionDims&, bool);
template void ExpectLayerExact(Backend&, const FullyConnectedDims&, bool);
template void ExpectLayerRepeats(Backend&, const ConvolutionDims&);
template void ExpectLayerRepeats(Backend&, const FullyConnectedDims&);

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

void ExpectGradient(Floats& values, const Floats& gradient, const Floats& dy,
                    const std::function<Floats()>& forward) {
  constexpr float kStep = 0x1.0p-7F;
  constexpr int kDirections = 4;
  ASSERT_EQ(values.size(), gradient.size());
  const Floats before = values;
  const int64_t n = values.size();
  // The reference computes in double and rounds an output to fp32 once, with an error of at most
  // 2^-24 of it. Its outputs may be computed from a mean, which is below the deviation for the
  // inputs here, a deviation and a sum in fp32: up to three more such errors. There are two losses.
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
      const double term = double{gradient[i]} * (above[i] - below[i]);
      predicted += term;
      magnitude += std::abs(term);
    }
    EXPECT_NEAR(loss_above - loss_below, predicted, 1e-3 * magnitude + noise);
  }
  values = before;
}

}  // namespace cadre
