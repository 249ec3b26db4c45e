// Compares the direct convolutions with the reference on an emulated device. Inputs are multiples
// of 1/8 in [-1, 1], of which fp32 sums are exact in any order, so fp32 results must have equal
// bits, and bf16 results those of the reference rounded once.
#include "kernels/cuda/direct_convolution.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/cuda/vendor_layout.h"
#include "kernels/extents.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/random_dims.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

class DirectConvolutionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Make(cuda_.api(), {});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  void ExpectExact(const ConvolutionDims& dims, DType type) {
    SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(dims) << " " << DTypeName(type));
    const LayerSizes sizes = SizesOf(dims);
    const Floats x = Eighths(sizes.x, 1), w = Eighths(sizes.w, 2), dy = Eighths(sizes.y, 3);
    Floats y(sizes.y), dx(sizes.x), dw(sizes.w);
    reference_->window().ConvolutionForward(dims, x, w, {}, y);
    reference_->window().ConvolutionBackwardData(dims, dy, w, dx);
    reference_->window().ConvolutionBackwardWeights(dims, x, dy, dw, {});
    // Addresses need no alignment beyond the type's.
    const OnDevice image(*device_, x, type, 1), weights(*device_, w, type, 1);
    const OnDevice outputs(*device_, dy, type, 1), got_y(*device_, Garbage(sizes.y), type, 1);
    const OnDevice got_dx(*device_, Garbage(sizes.x), type, 1);
    const OnDevice got_dw(*device_, Garbage(sizes.w), DType::kFloat32, 1);
    LaunchDirectForward(*device_, dims, image.values(), weights.values(), got_y.values());
    LaunchDirectBackwardData(*device_, dims, outputs.values(), weights.values(), got_dx.values());
    LaunchDirectBackwardWeights(*device_, dims, image.values(), outputs.values(), got_dw.span());
    ASSERT_TRUE(device_->Synchronize().ok()) << device_->status();
    const bool narrow = type == DType::kBFloat16;
    EXPECT_EQ(got_y.Get(), narrow ? Bf16Rounded(y) : y);
    EXPECT_EQ(got_dx.Get(), narrow ? Bf16Rounded(dx) : dx);
    EXPECT_EQ(got_dw.Get(), dw);
  }

  EmulatedCuda cuda_{EmulatedCuda::Mode::kInline};
  std::unique_ptr<CudaDevice> device_;
  const std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
};

TEST_F(DirectConvolutionTest, UnusualExtents) {
  for (const ConvolutionDims& dims : UnusualConvolutions()) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      ExpectExact(dims, type);
      if (HasFailure()) return;
    }
  }
}

TEST_F(DirectConvolutionTest, RandomExtents) {
  int computed = 0;
  for (uint64_t seed = 0; seed < kRandomCases; ++seed) {
    const ConvolutionDims dims = RandomConvolution(seed);
    const LayerSizes sizes = SizesOf(dims);
    if (sizes.x == 0 || sizes.w == 0 || sizes.y == 0) continue;
    ExpectExact(dims, seed % 2 == 0 ? DType::kFloat32 : DType::kBFloat16);
    if (HasFailure()) return;
    ++computed;
  }
  // About half of the cases have no image, no weights or no outputs.
  EXPECT_GT(computed, 90);
}

// More positions than a block has threads, so that a weight's gradient is a sum of several sums.
TEST_F(DirectConvolutionTest, SumsOverManyPositions) {
  ExpectExact(Convolution(3, 2, 3, Window(19, 23, 3, 1, 1)), DType::kFloat32);
}

TEST(HasDirectConvolutionTest, NeedsWorkAndWholeGroups) {
  const ConvolutionDims dims = Convolution(2, 4, 6, Window(5, 5, 3, 2, 1, 2), 2);
  EXPECT_TRUE(HasDirectConvolution(dims));
  const auto with = [&](auto change) {
    ConvolutionDims changed = dims;
    change(changed);
    return HasDirectConvolution(changed);
  };
  EXPECT_FALSE(with([](ConvolutionDims& d) { d.batch = 0; }));
  EXPECT_FALSE(with([](ConvolutionDims& d) { d.window.in_height = 0; }));
  EXPECT_FALSE(with([](ConvolutionDims& d) { d.window.out_width = 0; }));
  EXPECT_FALSE(with([](ConvolutionDims& d) { d.window.dilation = 0; }));
  EXPECT_FALSE(with([](ConvolutionDims& d) { d.in_channels = 5; }));
  EXPECT_FALSE(with([](ConvolutionDims& d) { d.out_channels = 7; }));
}

}  // namespace
}  // namespace cadre
