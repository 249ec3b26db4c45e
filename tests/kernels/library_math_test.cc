// Compares matrix products, convolutions and attention by the vendor's libraries on a GPU with
// plain loops. The tests are skipped with a reason if there is no GPU; if there is one, missing
// libraries are a failure.
//
// Tolerances. Inputs are multiples of 1/8 in [-1, 1], which are exact in bf16 and TF32. Products of
// them, and sums of up to 2^18 products in fp32 in any order, are exact, too, so matrix products in
// fp32 and TF32 must be exact. Rounding a result to bf16 has a relative error of at most 2^-9 (half
// a unit in the last of 8 places). Convolutions may transform their inputs (Winograd, Fourier),
// which is not exact: the tolerance is 2^-16 of the sum of the magnitudes in fp32, and 2^-9 in bf16
// and TF32, in which transformed inputs have fewer bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/extents.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/testing.h"
#include "tests/kernels/vendor_libraries.h"

namespace cadre {
namespace {

class LibraryMathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Make(RealCudaApi(), {});
    if (!device.ok()) GTEST_SKIP() << "no GPU to test on: " << device.status().message();
    device_ = *std::move(device);
    auto math = MakeLibraryMath(*device_, VendorLibraries());
    ASSERT_TRUE(math.ok()) << math.status();
    math_ = *std::move(math);
  }
  void TearDown() override {
    if (device_ == nullptr || math_ == nullptr) return;
    EXPECT_TRUE(device_->Synchronize().ok()) << device_->status();
    math_.reset();
  }

  // Expects that each error is at most `relative` of the expected value plus `of_magnitude` of the
  // sum of magnitudes.
  static void ExpectClose(const Floats& got, const Floats& want, const Floats& magnitude,
                          double relative, double of_magnitude) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double allowed = relative * std::fabs(want[i]) + of_magnitude * magnitude[i];
      ASSERT_LE(std::fabs(double{got[i]} - want[i]), allowed)
          << "element " << i << ": " << got[i] << " instead of " << want[i];
    }
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<DenseMath> math_;
};

constexpr double kBf16Rounding = 1.0 / 512;

// --- matrix products -----------------------------------------------------------------------------

struct ProductCase {
  MatrixProductDims dims;
  DType factors = DType::kFloat32, result = DType::kFloat32;
  bool tf32 = false;
};

// The number of elements from the first to the last one of a matrix with its batches.
int64_t Extent(int64_t rows, int64_t columns, int64_t row, const MatrixProductDims& d, int64_t step,
               int64_t outer) {
  return (rows - 1) * row + columns + (d.batch - 1) * step + (d.outer - 1) * outer;
}

void MultiplyPlainly(const MatrixProductDims& d, const Floats& a, const Floats& b,
                     const Floats& bias, Floats& c, Floats& magnitude) {
  const int64_t a_row = d.a_row > 0 ? d.a_row : d.transpose_a ? d.m : d.k;
  const int64_t b_row = d.b_row > 0 ? d.b_row : d.transpose_b ? d.k : d.n;
  const int64_t c_row = d.c_row > 0 ? d.c_row : d.n;
  for (int64_t o = 0; o < d.outer; ++o) {
    for (int64_t s = 0; s < d.batch; ++s) {
      const float* x = a.data() + o * d.a_outer + s * d.a_step;
      const float* y = b.data() + o * d.b_outer + s * d.b_step;
      const int64_t z = o * d.c_outer + s * d.c_step;
      for (int64_t i = 0; i < d.m; ++i) {
        for (int64_t j = 0; j < d.n; ++j) {
          double sum = 0, size = 0;
          for (int64_t k = 0; k < d.k; ++k) {
            const double product = double{d.transpose_a ? x[k * a_row + i] : x[i * a_row + k]} *
                                   (d.transpose_b ? y[j * b_row + k] : y[k * b_row + j]);
            sum += product;
            size += std::fabs(product);
          }
          float& result = c[z + i * c_row + j];
          result = sum * d.alpha + (bias.empty() ? 0 : bias[j]);
          magnitude[z + i * c_row + j] = size;
        }
      }
    }
  }
}

std::vector<MatrixProductDims> ProductDims() {
  std::vector<MatrixProductDims> all;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      MatrixProductDims d{.transpose_a = transpose_a, .transpose_b = transpose_b};
      for (const auto& [m, n, k] :
           {std::tuple(64, 128, 96), std::tuple(1, 257, 33), std::tuple(100, 1, 64),
            std::tuple(37, 19, 1), std::tuple(8, 1000, 512), std::tuple(7, 9, 11)}) {
        d.m = m;
        d.n = n;
        d.k = k;
        all.push_back(d);
      }
    }
  }
  // As in attention: the inner batch (heads) lies within a token's row, and the outer batch is over
  // samples.
  all.push_back({.m = 16,
                 .n = 16,
                 .k = 8,
                 .transpose_b = true,
                 .a_row = 72,
                 .b_row = 72,
                 .batch = 3,
                 .a_step = 24,
                 .b_step = 24,
                 .c_step = 256,
                 .outer = 2,
                 .a_outer = 1152,
                 .b_outer = 1152,
                 .c_outer = 768,
                 .alpha = 0.25F});
  // Rows that begin at unaligned addresses.
  all.push_back({.m = 5, .n = 6, .k = 7, .a_row = 11, .b_row = 13, .c_row = 9});
  return all;
}

TEST_F(LibraryMathTest, ProductsOfEveryLayoutAndType) {
  for (const MatrixProductDims& d : ProductDims()) {
    const int64_t a_row = d.a_row > 0 ? d.a_row : d.transpose_a ? d.m : d.k;
    const int64_t b_row = d.b_row > 0 ? d.b_row : d.transpose_b ? d.k : d.n;
    const int64_t c_row = d.c_row > 0 ? d.c_row : d.n;
    const Floats a = Eighths(d.transpose_a ? Extent(d.k, d.m, a_row, d, d.a_step, d.a_outer)
                                           : Extent(d.m, d.k, a_row, d, d.a_step, d.a_outer),
                             1);
    const Floats b = Eighths(d.transpose_b ? Extent(d.n, d.k, b_row, d, d.b_step, d.b_outer)
                                           : Extent(d.k, d.n, b_row, d, d.b_step, d.b_outer),
                             2);
    // The library adds a bias only to products that are neither batched nor strided.
    const Floats bias = d.outer == 1 && d.a_row == 0 ? Eighths(d.n, 3) : Floats();
    const Floats before = Eighths(Extent(d.m, d.n, c_row, d, d.c_step, d.c_outer), 4);
    for (const auto& [factors, result, tf32] :
         {std::tuple(DType::kFloat32, DType::kFloat32, false),
          std::tuple(DType::kFloat32, DType::kFloat32, true),
          std::tuple(DType::kBFloat16, DType::kBFloat16, false),
          std::tuple(DType::kBFloat16, DType::kFloat32, false)}) {
      for (const int64_t skip : {0, 3}) {
        SCOPED_TRACE(::testing::Message()
                     << d.m << "x" << d.n << "x" << d.k << (d.transpose_a ? " a^T" : "")
                     << (d.transpose_b ? " b^T" : "") << " " << DTypeName(factors) << " to "
                     << DTypeName(result) << (tf32 ? " TF32" : "") << ", skipping " << skip);
        Floats want = before, magnitude(before.size(), 0.0F);
        MultiplyPlainly(d, a, b, bias, want, magnitude);
        const OnDevice x(*device_, a, factors, skip), y(*device_, b, factors, skip);
        const OnDevice z(*device_, before, result, skip), w(*device_, bias, DType::kFloat32);
        math_->set_tf32(tf32);
        math_->MatrixProduct(d, x.values(), y.values(), w.span(), z.values());
        ASSERT_TRUE(device_->Synchronize().ok()) << device_->status();
        // Elements between the rows keep their values, which `want` contains.
        ExpectClose(z.Get(), want, magnitude, result == DType::kBFloat16 ? kBf16Rounding : 0, 0);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(LibraryMathTest, ProductsRepeatBitwise) {
  const MatrixProductDims d{.m = 256, .n = 384, .k = 4096, .transpose_a = true};
  const OnDevice a(*device_, Uniform(d.m * d.k, 1), DType::kBFloat16);
  const OnDevice b(*device_, Uniform(d.n * d.k, 2), DType::kBFloat16);
  const OnDevice c(*device_, Floats(d.m * d.n, 0.0F), DType::kFloat32);
  math_->MatrixProduct(d, a.values(), b.values(), {}, c.values());
  const Floats first = c.Get();
  for (int i = 0; i < 5; ++i) {
    math_->MatrixProduct(d, a.values(), b.values(), {}, c.values());
    ASSERT_EQ(c.Get(), first);
  }
}

// --- convolutions --------------------------------------------------------------------------------

// Convolutions of networks, and unusual ones.
std::vector<ConvolutionDims> Shapes() {
  std::vector<ConvolutionDims> shapes = UnusualConvolutions();
  for (const ConvolutionDims& dims :
       {Convolution(2, 64, 128, Window(14, 14, 1)), Convolution(2, 64, 128, Window(14, 14, 1, 2)),
        Convolution(2, 32, 64, Window(14, 14, 3, 1, 1)),
        Convolution(2, 32, 64, Window(15, 14, 3, 2, 1)),
        Convolution(2, 3, 64, Window(40, 36, 7, 2, 3)),
        Convolution(2, 3, 96, Window(43, 43, 11, 4)), Convolution(2, 17, 33, Window(9, 9, 3, 1, 1)),
        // Windows that reach no row of the input.
        Convolution(1, 2, 3,
                    {.in_height = 3,
                    .in_width = 2,
                    .out_height = 1,
                    .out_width = 1,
                    .kernel_height = 2,
                    .kernel_width = 2,
                    .pad_top = 3})}) {
    shapes.push_back(dims);
  }
  return shapes;
}

TEST_F(LibraryMathTest, ConvolutionsOfEveryShapeAndType) {
  for (const ConvolutionDims& dims : Shapes()) {
    const LayerSizes sizes = SizesOf(dims);
    const Floats x = Eighths(sizes.x, 1), w = Eighths(sizes.w, 2), dy = Eighths(sizes.y, 3);
    const auto reference = MakeReferenceBackend();
    const LayerOutputs want = RunLayer(*reference, dims, x, w, {}, dy);
    const LayerOutputs magnitude =
        RunLayer(*reference, dims, Absolute(x), Absolute(w), {}, Absolute(dy));
    for (const auto& [type, tf32] :
         {std::pair(DType::kFloat32, false), std::pair(DType::kFloat32, true),
          std::pair(DType::kBFloat16, false)}) {
      SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(dims) << " " << DTypeName(type)
                                        << (tf32 ? " TF32" : ""));
      const OnDevice image(*device_, x, type), weights(*device_, w, type), out(*device_, dy, type);
      const OnDevice y(*device_, Garbage(sizes.y), type), dx(*device_, Garbage(sizes.x), type);
      const OnDevice dw(*device_, Garbage(sizes.w), DType::kFloat32);
      math_->set_tf32(tf32);
      math_->ConvolutionForward(dims, image.values(), weights.values(), y.values());
      math_->ConvolutionBackwardData(dims, out.values(), weights.values(), dx.values());
      math_->ConvolutionBackwardWeights(dims, image.values(), out.values(), dw.span());
      ASSERT_TRUE(device_->Synchronize().ok()) << device_->status();
      const double relative = type == DType::kBFloat16 ? kBf16Rounding : 0;
      const double of_magnitude = tf32 || type == DType::kBFloat16 ? 1.0 / 512 : 1.0 / 65536;
      ExpectClose(y.Get(), want.y, magnitude.y, relative, of_magnitude);
      ExpectClose(dx.Get(), want.dx, magnitude.dx, relative, of_magnitude);
      ExpectClose(dw.Get(), want.dw, magnitude.dw, relative, of_magnitude);
      if (HasFailure()) return;
    }
  }
}

TEST_F(LibraryMathTest, ConvolutionsRepeatBitwise) {
  const ConvolutionDims dims = Convolution(16, 64, 128, Window(28, 28, 3, 1, 1));
  const LayerSizes sizes = SizesOf(dims);
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    math_->set_tf32(true);
    const OnDevice x(*device_, Uniform(sizes.x, 1), type), w(*device_, Uniform(sizes.w, 2), type);
    const OnDevice dy(*device_, Uniform(sizes.y, 3), type), y(*device_, Garbage(sizes.y), type);
    const OnDevice dx(*device_, Garbage(sizes.x), type);
    const OnDevice dw(*device_, Garbage(sizes.w), DType::kFloat32);
    LayerOutputs first;
    for (int i = 0; i < 4; ++i) {
      math_->ConvolutionForward(dims, x.values(), w.values(), y.values());
      math_->ConvolutionBackwardData(dims, dy.values(), w.values(), dx.values());
      math_->ConvolutionBackwardWeights(dims, x.values(), dy.values(), dw.span());
      const LayerOutputs got{.y = y.Get(), .dx = dx.Get(), .dw = dw.Get()};
      if (i == 0) first = got;
      ExpectEqual(got, first);
    }
  }
}

// --- attention -----------------------------------------------------------------------------------

// The library rounds probabilities and their gradients to bf16 before it multiplies them (an error
// of 2^-9 each), and then rounds its results. Values are at most 1 and rows of probabilities sum to
// 1, so results are within 2^-7 of the formula's, relative to their scale. Gradients of keys and
// values are sums over up to `tokens` rows.
TEST_F(LibraryMathTest, FusedAttentionMatchesTheFormula) {
  const auto reference = MakeReferenceBackend();
  for (const bool causal : {false, true}) {
    for (const auto& [tokens, features] :
         {std::pair(128, 64), std::pair(37, 64), std::pair(64, 32), std::pair(96, 128)}) {
      const AttentionDims dims{
          .batch = 2, .tokens = tokens, .heads = 3, .head_features = features, .causal = causal};
      SCOPED_TRACE(::testing::PrintToString(dims));
      ASSERT_TRUE(math_->HasFusedAttention(dims, DType::kBFloat16));
      const AttentionSizes sizes = SizesOf(dims);
      const Floats qkv = Bf16Rounded(Uniform(sizes.qkv, 1));
      const Floats dcontext = Bf16Rounded(Uniform(sizes.context, 2));
      Floats logs(sizes.statistics), context(sizes.context), dqkv(sizes.qkv);
      reference->dense().AttentionForward(dims, {}, qkv, context, logs, {});
      reference->dense().AttentionBackward(dims, {}, qkv, context, dcontext, logs, {}, dqkv);
      const OnDevice x(*device_, qkv, DType::kBFloat16), d(*device_, dcontext, DType::kBFloat16);
      const OnDevice y(*device_, Garbage(sizes.context), DType::kBFloat16);
      const OnDevice dx(*device_, Garbage(sizes.qkv), DType::kBFloat16);
      DeviceArray<float> statistics(*device_, dims.batch * dims.heads * dims.tokens, "test");
      math_->FusedAttentionForward(dims, x.values(), y.values(), statistics.span());
      math_->FusedAttentionBackward(dims, x.values(), y.values(), d.values(), statistics.span(), {},
                                    dx.values());
      ASSERT_TRUE(device_->Synchronize().ok()) << device_->status();
      ExpectNear(y.Get(), context, 1.0 / 64);
      ExpectNear(dx.Get(), dqkv, 1.0 / 32);
    }
  }
}

// cuDNN's notes on determinism do not select the engine of attention, so that this test decides.
TEST_F(LibraryMathTest, FusedAttentionRepeatsBitwise) {
  const AttentionDims dims{
      .batch = 8, .tokens = 1024, .heads = 4, .head_features = 64, .causal = true};
  ASSERT_TRUE(math_->HasFusedAttention(dims, DType::kBFloat16));
  const AttentionSizes sizes = SizesOf(dims);
  const OnDevice x(*device_, Uniform(sizes.qkv, 1), DType::kBFloat16);
  const OnDevice d(*device_, Uniform(sizes.context, 2), DType::kBFloat16);
  const OnDevice y(*device_, Garbage(sizes.context), DType::kBFloat16);
  const OnDevice dx(*device_, Garbage(sizes.qkv), DType::kBFloat16);
  const OnDevice statistics(*device_, Garbage(sizes.statistics));
  Floats first_y, first_dx;
  for (int i = 0; i < 5; ++i) {
    math_->FusedAttentionForward(dims, x.values(), y.values(), statistics.span());
    math_->FusedAttentionBackward(dims, x.values(), y.values(), d.values(), statistics.span(), {},
                                  dx.values());
    if (i == 0) {
      first_y = y.Get();
      first_dx = dx.Get();
    }
    ASSERT_EQ(y.Get(), first_y);
    ASSERT_EQ(dx.Get(), first_dx);
  }
  EXPECT_EQ(math_->counters().unfused_attentions, 0);
}

TEST_F(LibraryMathTest, FusedAttentionExistsForSupportedExtentsOnly) {
  const AttentionDims dims{.batch = 2, .tokens = 64, .heads = 2, .head_features = 64};
  EXPECT_FALSE(math_->HasFusedAttention(dims, DType::kFloat32));
  AttentionDims odd = dims;
  odd.head_features = 63;
  EXPECT_FALSE(math_->HasFusedAttention(odd, DType::kBFloat16));
  AttentionDims large = dims;
  large.head_features = 256;
  EXPECT_FALSE(math_->HasFusedAttention(large, DType::kBFloat16));
  AttentionDims one = dims;
  one.tokens = 1;
  EXPECT_FALSE(math_->HasFusedAttention(one, DType::kBFloat16));
  EXPECT_TRUE(device_->status().ok());
}

// --- captures and errors -------------------------------------------------------------------------

TEST_F(LibraryMathTest, WorkCanBeCapturedAfterItRanOnce) {
  const ConvolutionDims dims = Convolution(4, 32, 64, Window(14, 14, 3, 1, 1));
  const LayerSizes sizes = SizesOf(dims);
  const OnDevice x(*device_, Eighths(sizes.x, 1), DType::kBFloat16);
  const OnDevice w(*device_, Eighths(sizes.w, 2), DType::kBFloat16);
  const OnDevice y(*device_, Garbage(sizes.y), DType::kBFloat16);
  const OnDevice again(*device_, Garbage(sizes.y), DType::kBFloat16);
  math_->ConvolutionForward(dims, x.values(), w.values(), y.values());
  const Floats want = y.Get();
  ASSERT_TRUE(device_->can_capture());
  auto recording = device_->CaptureGraph([&] {
    math_->ConvolutionForward(dims, x.values(), w.values(), again.values());
    return device_->status();
  });
  ASSERT_TRUE(recording.ok()) << recording.status();
  ASSERT_NE(*recording, nullptr);
  device_->LaunchGraph(**recording);
  EXPECT_EQ(again.Get(), want);
}

TEST_F(LibraryMathTest, VersionsNameTheLibraries) {
  EXPECT_NE(math_->versions().find("cuBLASLt "), std::string::npos) << math_->versions();
  EXPECT_NE(math_->versions().find("cuDNN 9."), std::string::npos) << math_->versions();
}

}  // namespace
}  // namespace cadre
