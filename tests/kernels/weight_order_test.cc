#include "kernels/cuda/weight_order.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

class WeightOrderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Make(cuda_.api(), {});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  template <typename From, typename To, typename Launch>
  std::vector<To> Run(const WeightOrderDims& dims, const std::vector<From>& from, DType from_type,
                      DType to_type, Launch launch) {
    DeviceArray<From> x(*device_, from.size(), "test");
    DeviceArray<To> y(*device_, from.size(), "test");
    device_->CopyIn(from.data(), x.data(), from.size() * sizeof(From));
    launch(*device_, dims, ConstValues(x.data(), x.size(), from_type),
           Values(y.data(), y.size(), to_type));
    std::vector<To> got(from.size());
    const absl::Status status = device_->CopyOut(y.data(), got.data(), got.size() * sizeof(To));
    EXPECT_TRUE(status.ok()) << status;
    return got;
  }

  EmulatedCuda cuda_{EmulatedCuda::Mode::kInline};
  std::unique_ptr<CudaDevice> device_;
};

std::vector<WeightOrderDims> AllDims() {
  return {{.out = 1, .channels = 1, .taps = 1},     {.out = 3, .channels = 5, .taps = 4},
          {.out = 2, .channels = 130, .taps = 9},   {.out = 2, .channels = 300, .taps = 1},
          {.out = 1, .channels = 20000, .taps = 1}, {.out = 2, .channels = 3, .taps = 121},
          {.out = 1, .channels = 3, .taps = 4097},  {.out = 1, .channels = 2, .taps = 9000}};
}

TEST_F(WeightOrderTest, ReordersAndReordersBack) {
  for (const WeightOrderDims& d : AllDims()) {
    SCOPED_TRACE(::testing::Message() << d.out << " " << d.channels << " " << d.taps);
    const Floats from = Shuffled(d.out * d.channels * d.taps, 1);
    const auto last =
        Run<float, float>(d, from, DType::kFloat32, DType::kFloat32, &LaunchChannelsToLast);
    Floats want(from.size());
    for (int64_t o = 0; o < d.out; ++o) {
      for (int64_t c = 0; c < d.channels; ++c) {
        for (int64_t t = 0; t < d.taps; ++t) {
          want[(o * d.taps + t) * d.channels + c] = from[(o * d.channels + c) * d.taps + t];
        }
      }
    }
    ASSERT_EQ(last, want);
    const auto back =
        Run<float, float>(d, last, DType::kFloat32, DType::kFloat32, &LaunchChannelsToFront);
    ASSERT_EQ(back, from);
  }
}

// Whole numbers up to 256 are exact in bf16.
TEST_F(WeightOrderTest, TypesMayDiffer) {
  const WeightOrderDims d{.out = 2, .channels = 6, .taps = 9};
  const Floats from = Shuffled(d.out * d.channels * d.taps, 1);
  const auto narrow =
      Run<float, uint16_t>(d, from, DType::kFloat32, DType::kBFloat16, &LaunchChannelsToLast);
  const auto back =
      Run<uint16_t, float>(d, narrow, DType::kBFloat16, DType::kFloat32, &LaunchChannelsToFront);
  EXPECT_EQ(back, from);
}

TEST_F(WeightOrderTest, EmptyWeightsAreAccepted) {
  LaunchChannelsToLast(*device_, {.out = 0, .channels = 3, .taps = 9}, {}, {});
  EXPECT_TRUE(device_->Synchronize().ok());
}

}  // namespace
}  // namespace cadre
