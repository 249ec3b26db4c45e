// Tests that weights which are passed to the vendor's libraries are 16-byte aligned, whatever the
// alignment of the parameters.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

// Records the weights and biases that it is called with, and computes nothing.
class RecordingMath final : public DenseMath {
 public:
  RecordingMath(std::vector<ConstValues>& weights, std::vector<ConstValues>& biases)
      : weights_(weights), biases_(biases) {}

  void set_tf32(bool /*allowed*/) override {}
  void MatrixProduct(const MatrixProductDims& /*dims*/, ConstValues /*a*/, ConstValues b,
                     ConstValues bias, Values /*c*/) override {
    weights_.push_back(b);
    biases_.push_back(bias);
  }
  void ConvolutionForward(const ConvolutionDims& /*dims*/, ConstValues /*x*/, ConstValues w,
                          Values /*y*/) override {
    weights_.push_back(w);
  }
  void ConvolutionBackwardData(const ConvolutionDims& /*dims*/, ConstValues /*dy*/, ConstValues w,
                               Values /*dx*/) override {
    weights_.push_back(w);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& /*dims*/, ConstValues /*x*/,
                                  ConstValues /*dy*/, FloatSpan /*dw*/) override {}
  bool HasFusedAttention(const AttentionDims& /*dims*/, DType /*type*/) override { return false; }
  void FusedAttentionForward(const AttentionDims& /*dims*/, ConstValues /*qkv*/, Values /*context*/,
                             FloatSpan /*statistics*/) override {}
  void FusedAttentionBackward(const AttentionDims& /*dims*/, ConstValues /*qkv*/,
                              ConstValues /*context*/, ConstValues /*dcontext*/,
                              ConstFloatSpan /*statistics*/, Values /*scratch*/,
                              Values /*dqkv*/) override {}
  std::string versions() const override { return "none"; }

 private:
  std::vector<ConstValues>& weights_;
  std::vector<ConstValues>& biases_;
};

// Parameters: the type of activations, and the distance in elements between an aligned address and
// the weights.
class CudaWeights : public testing::TestWithParam<std::pair<DType, int64_t>> {
 protected:
  CudaWeights() {
    auto device = CudaDevice::Make(cuda_.api(), {.memory_limit = int64_t{64} << 20});
    CHECK(device.ok()) << device.status();
    device_ = *std::move(device);
    kernels_ = MakeCudaBackend(*device_, std::make_unique<RecordingMath>(recorded_, biases_));
  }
  // The values of the weights of the last call.
  Floats Recorded() {
    EXPECT_EQ(recorded_.size(), 1U);
    const ConstValues given = recorded_.back();
    recorded_.clear();
    EXPECT_EQ(given.type(), GetParam().first);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(given.data()) % 16, 0U);
    const DeviceArray<float> wide(*device_, given.size(), "test");
    kernels_->memory().Copy(given, wide.span());
    return FromDevice<float>(*device_, wide.span());
  }

  EmulatedCuda cuda_{EmulatedCuda::Mode::kInline};
  std::unique_ptr<CudaDevice> device_;
  std::vector<ConstValues> recorded_;
  std::vector<ConstValues> biases_;
  std::unique_ptr<Backend> kernels_;
};

TEST_P(CudaWeights, AreAligned) {
  const auto [type, shift] = GetParam();
  const Floats values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const OnDevice w(*device_, values, DType::kFloat32, shift);
  const OnDevice x(*device_, Floats(6, 1.0F), type);
  const OnDevice y(*device_, Floats(8, 1.0F), type);
  const FullyConnectedDims product{.batch = 2, .in = 3, .out = 4};
  kernels_->dense().FullyConnectedForward(product, x.values(), w.span(), {}, y.values());
  EXPECT_EQ(Recorded(), values);
  kernels_->dense().FullyConnectedBackwardData(product, y.values(), w.span(), x.values());
  EXPECT_EQ(Recorded(), values);
  const ConvolutionDims convolution{.batch = 2,
                                    .in_channels = 3,
                                    .out_channels = 4,
                                    .window = {.in_height = 1,
                                               .in_width = 1,
                                               .out_height = 1,
                                               .out_width = 1,
                                               .kernel_height = 1,
                                               .kernel_width = 1}};
  kernels_->window().ConvolutionForward(convolution, x.values(), w.span(), {}, y.values());
  EXPECT_EQ(Recorded(), values);
  kernels_->window().ConvolutionBackwardData(convolution, y.values(), w.span(), x.values());
  EXPECT_EQ(Recorded(), values);
}

TEST_P(CudaWeights, AreNotCopiedIfAligned) {
  const auto [type, shift] = GetParam();
  if (type != DType::kFloat32) return;
  const OnDevice w(*device_, Floats(12, 1.0F), type, shift);
  const OnDevice x(*device_, Floats(6, 1.0F), type);
  const OnDevice y(*device_, Floats(8, 1.0F), type);
  kernels_->dense().FullyConnectedForward({.batch = 2, .in = 3, .out = 4}, x.values(), w.span(), {},
                                          y.values());
  EXPECT_EQ(recorded_.back().data() == w.span().data(), shift % 4 == 0);
}

// A product of bf16 reads the bias's copy, which need not be converted for each product.
TEST_P(CudaWeights, BiasesAreCopiesIfTheyAreAligned) {
  const auto [type, shift] = GetParam();
  const Precision precision = type == DType::kFloat32 ? Precision::kFp32 : Precision::kBf16;
  ASSERT_EQ(kernels_->SetPrecision(precision), absl::OkStatus());
  const OnDevice parameters(*device_, Floats(32, 1.0F));
  kernels_->WeightsChanged(parameters.span());
  const OnDevice x(*device_, Floats(6, 1.0F), type);
  const OnDevice y(*device_, Floats(8, 1.0F), type);
  const ConstFloatSpan w = parameters.span().first(12);
  const ConstFloatSpan b = parameters.span().subspan(16 + shift, 4);
  kernels_->dense().FullyConnectedForward({.batch = 2, .in = 3, .out = 4}, x.values(), w, b,
                                          y.values());
  const bool copied = type == DType::kBFloat16 && shift == 0;
  EXPECT_EQ(biases_.back().type(), copied ? DType::kBFloat16 : DType::kFloat32);
  EXPECT_EQ(biases_.back().size(), 4U);
  EXPECT_EQ(biases_.back().data() == b.data(), !copied);
}

INSTANTIATE_TEST_SUITE_P(
    Places, CudaWeights,
    testing::Values(std::pair(DType::kFloat32, 0), std::pair(DType::kFloat32, 1),
                    std::pair(DType::kFloat32, 2), std::pair(DType::kFloat32, 4),
                    std::pair(DType::kBFloat16, 0), std::pair(DType::kBFloat16, 1)));

}  // namespace
}  // namespace cadre
