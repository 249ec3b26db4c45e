// What is particular to the CPU back end with bf16 activations: the extents of convolutions for
// which it has separate ways, copies of weights, and host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/extents.h"
#include "kernels/optimizer_step.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/rig.h"

namespace cadre {
namespace {

// The largest relative error of rounding to bf16.
constexpr double kHalfUnit = 0x1.0p-8;

// Products of bf16 are exact in fp32, so a sum of n of them has the error of fp32 sums, and is then
// rounded once: to bf16 if it is an activation.
void ExpectSumsRounded(const Floats& got, const Floats& want, const Floats& magnitude,
                       int64_t terms, double rounding) {
  ASSERT_EQ(got.size(), want.size());
  const double units = (terms + 1) * 0x1.0p-24;
  for (size_t i = 0; i < got.size(); ++i) {
    const double in_sum = units / (1 - units) * magnitude[i];
    ASSERT_NEAR(got[i], want[i], rounding * (std::abs(want[i]) + in_sum) + in_sum + 1e-30)
        << "element " << i;
  }
}

class CpuBf16Test : public RigTest {
 protected:
  static Floats Random(int64_t n, uint64_t seed) { return Bf16Rounded(Uniform(n, seed)); }

  // One layer on exact data, compared with the reference on the same data.
  template <typename Dims>
  void ExpectLayer(const Dims& dims, int64_t terms, bool with_bias) {
    const auto bf16 = MakeStagedBackend(MakeRig(), 0, DType::kBFloat16);
    const LayerSizes sizes = SizesOf(dims);
    const Floats x = Random(sizes.x, 1), w = Random(sizes.w, 2), dy = Random(sizes.y, 4),
                 b = with_bias ? Uniform(sizes.b, 3) : Floats();
    const LayerOutputs got = RunLayer(*bf16, dims, x, w, b, dy);
    const LayerOutputs want = RunLayer(*reference_, dims, x, w, b, dy);
    const LayerOutputs magnitude =
        RunLayer(*reference_, dims, Absolute(x), Absolute(w), Absolute(b), Absolute(dy));
    ExpectSumsRounded(got.y, want.y, magnitude.y, terms, kHalfUnit);
    ExpectSumsRounded(got.dx, want.dx, magnitude.dx, terms, kHalfUnit);
    ExpectSumsRounded(got.dw, want.dw, magnitude.dw, terms, 0);
    ExpectSumsRounded(got.db, want.db, magnitude.db, terms, 0);
  }
};

int64_t MaxTerms(const ConvolutionDims& d) {
  const WindowDims& w = d.window;
  const int64_t taps = w.kernel_height * w.kernel_width;
  return std::max(std::max(d.in_channels, d.out_channels) * taps + 1,
                  d.batch * w.out_height * w.out_width);
}

TEST_F(CpuBf16Test, Convolutions) {
  std::vector<ConvolutionDims> tried = UnusualConvolutions();
  for (const ConvolutionDims& dims :
       {Convolution(2, 3, 20, Window(12, 12, 5, 1, 2)),
        Convolution(2, 16, 32, Window(9, 9, 3, 2, 1)), Convolution(2, 16, 48, Window(7, 5, 1)),
        Convolution(2, 48, 16, Window(7, 5, 1, 2)), Convolution(1, 1, 6, Window(28, 28, 5, 1, 2)),
        Convolution(0, 3, 4, Window(5, 5, 3)),
        // The factors are bf16 copies of the weights.
        Convolution(2, 512, 514, Window(3, 2, 1)),
        // The gradient of weights gathers its inputs.
        Convolution(3, 128, 130, Window(6, 5, 3, 1, 1)),
        Convolution(2, 130, 128, Window(9, 9, 3, 2, 1)),
        Convolution(2, 128, 128, Window(9, 7, 1, 2)),
        Convolution(2, 128, 128, Window(8, 9, 3, 1, 2, 2))}) {
    tried.push_back(dims);
  }
  for (const ConvolutionDims& dims : tried) {
    for (const bool with_bias : {true, false}) {
      SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(dims) << " " << with_bias);
      ExpectLayer(dims, MaxTerms(dims), with_bias);
    }
  }
}

TEST_F(CpuBf16Test, FullyConnected) {
  for (const FullyConnectedDims& dims :
       {FullyConnectedDims{1, 1, 1}, FullyConnectedDims{16, 200, 100},
        FullyConnectedDims{300, 33, 65}, FullyConnectedDims{5, 7, 0}, FullyConnectedDims{5, 0, 7},
        FullyConnectedDims{0, 7, 5}}) {
    for (const bool with_bias : {true, false}) {
      SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(dims) << " " << with_bias);
      ExpectLayer(dims, std::max({dims.in + 1, dims.out, dims.batch}), with_bias);
    }
  }
}

// A product uses the weights that the last update, or another writer, has left.
TEST_F(CpuBf16Test, ProductsUseCurrentWeights) {
  UseBf16();
  const FullyConnectedDims dims{.batch = 1, .in = 2, .out = 3};
  Floats w(6, 1.0F), v(6);
  const OnDevice x(device(), Floats(2, 1.0F), DType::kBFloat16);
  const OnDevice y(device(), Garbage(3), DType::kBFloat16);
  const auto output = [&] {
    kernels().dense().FullyConnectedForward(dims, x.values(), w, {}, y.values());
    return y.Get();
  };
  w.assign(6, 2.0F);
  EXPECT_EQ(output(), Floats(3, 4.0F)) << "not announced";
  kernels().WeightsChanged(w);
  EXPECT_EQ(output(), Floats(3, 4.0F));
  kernels().optimizer().Update(SgdStep{.rate = 1}, Floats(6, 1.0F), w, States{v});
  EXPECT_EQ(output(), Floats(3, 2.0F));
  w.assign(6, 5.0F);
  kernels().WeightsChanged(w);
  EXPECT_EQ(output(), Floats(3, 10.0F));
}

TEST_F(CpuBf16Test, Memory) {
  const Floats x = Uniform(1001, 1);
  const OnDevice wide(device(), x), narrow(device(), Garbage(1001), DType::kBFloat16),
      again(device(), Garbage(1001));
  kernels().memory().Copy(wide.values(), narrow.values());
  EXPECT_EQ(narrow.Get(), Bf16Rounded(x));
  kernels().memory().Copy(narrow.values(), again.values());
  EXPECT_EQ(again.Get(), Bf16Rounded(x));
  EXPECT_TRUE(kernels().memory().AllFinite(narrow.values()));
  // Ties, overflow to infinity, infinities and NaN.
  const Floats special = {0x1.01p0F, 0x1.03p0F, 0x1.010002p0F, 3.4e38F, INFINITY, -INFINITY, NAN};
  const OnDevice from(device(), special), to(device(), Garbage(7), DType::kBFloat16);
  kernels().memory().Copy(from.values(), to.values());
  const Floats got = to.Get();
  EXPECT_EQ(Floats(got.begin(), got.end() - 1),
            (Floats{1, 0x1.04p0F, 0x1.02p0F, INFINITY, INFINITY, -INFINITY}));
  EXPECT_TRUE(std::isnan(got.back()));
  EXPECT_FALSE(kernels().memory().AllFinite(to.values()));
}

TEST_F(CpuBf16Test, Boxes) {
  const Shape shape{5, 7, 3};
  const Box whole = Box::Whole(shape), region{{1, 2, 0}, {4, 5, 3}};
  const Floats x = Random(105, 1), before = Random(105, 2);
  Floats copied = before, summed = before;
  reference_->memory().CopyBox(x, whole, copied, whole, region);
  reference_->memory().AddBox(x, whole, summed, whole, region);
  const OnDevice from(device(), x, DType::kBFloat16), to(device(), before, DType::kBFloat16),
      sum(device(), before, DType::kBFloat16);
  kernels().memory().CopyBox(from.values(), whole, to.values(), whole, region);
  kernels().memory().AddBox(from.values(), whole, sum.values(), whole, region);
  EXPECT_EQ(to.Get(), copied);
  EXPECT_EQ(sum.Get(), Bf16Rounded(summed));
}

TEST_F(CpuBf16Test, RunsAndTransposition) {
  const Floats x = Random(60, 1);
  Floats runs = Garbage(60), transposed = Garbage(60);
  reference_->memory().CopyRuns(4, 5, x, 15, runs, 6);
  reference_->memory().Transpose(2, 6, 5, x, transposed);
  const OnDevice from(device(), x, DType::kBFloat16), to(device(), Garbage(60), DType::kBFloat16),
      turned(device(), Garbage(60), DType::kBFloat16);
  kernels().memory().CopyRuns(4, 5, from.values(), 15, to.values(), 6);
  kernels().memory().Transpose(2, 6, 5, from.values(), turned.values());
  const Floats got = to.Get();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i] == runs[i] || (std::isnan(got[i]) && std::isnan(runs[i]))) << i;
  }
  EXPECT_EQ(turned.Get(), transposed);
}

// Tensors without elements are passed as empty views of the default type.
TEST_F(CpuBf16Test, EmptyTensorsMayHaveAnyType) {
  UseBf16();
  const OnDevice some(device(), Floats(4), DType::kBFloat16);
  kernels().dense().FullyConnectedForward({1, 4, 0}, some.values(), {}, {}, {});
  kernels().dense().FullyConnectedBackwardData({1, 0, 4}, some.values(), {}, {});
  const Floats bias = {1, 2, 3, 4};
  const auto expect = [&](const Floats& want, const std::function<void(Values)>& run) {
    const OnDevice y(device(), Garbage(4), DType::kBFloat16);
    run(y.values());
    EXPECT_EQ(y.Get(), want);
  };
  expect(bias, [&](Values y) {
    kernels().dense().FullyConnectedForward({1, 0, 4}, {}, {}, bias, y);
  });
  const Floats zeros(4);
  expect(zeros, [&](Values dx) {
    kernels().dense().FullyConnectedBackwardData({1, 4, 0}, {}, {}, dx);
  });
  expect(zeros, [&](Values y) { kernels().window().GlobalAveragePoolForward(1, 0, 4, 1, {}, y); });
  expect(zeros, [&](Values dfactor) {
    kernels().pointwise().MultiplyBackward({.batch = 1, .rows = 0, .channels = 4}, {}, {}, dfactor);
  });
  WindowDims window{.in_height = 2, .in_width = 2, .kernel_height = 2, .kernel_width = 2};
  expect(zeros, [&](Values dx) {
    kernels().window().PoolingBackward(Pooling(PoolKind::kAverage, 1, 1, window), {}, {}, dx);
  });
  expect(zeros, [&](Values dx) {
    kernels().window().ConvolutionBackwardData(Convolution(1, 1, 1, window), {}, bias, dx);
  });
}

// As the back end guarantees for the same number of threads.
TEST_F(CpuBf16Test, RepeatsItsBits) {
  const ConvolutionDims dims = Convolution(4, 16, 32, Window(10, 10, 3, 1, 1));
  const LayerSizes sizes = SizesOf(dims);
  const auto run = [&] {
    return RunLayer(*MakeStagedBackend(MakeRig(), 0, DType::kBFloat16), dims, Random(sizes.x, 1),
                    Random(sizes.w, 2), Random(sizes.b, 3), Random(sizes.y, 4));
  };
  const LayerOutputs first = run();
  for (int i = 0; i < 3; ++i) ExpectEqual(run(), first);
}

}  // namespace
}  // namespace cadre
