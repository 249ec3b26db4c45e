// Tests the launch shapes of kernels on an emulated device with as many processors as an H100. The
// work is captured and not run, so that tensors may be as large as those of training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kernels/extents.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/kernels/on_device.h"

namespace cadre {
namespace {

class LaunchShapeTest : public ::testing::Test {
 protected:
  // The number of blocks of the last launch in `work`.
  int64_t BlocksOf(const std::function<void()>& work) {
    const auto graph = rank_.device->CaptureGraph([&] {
      work();
      return rank_.device->status();
    });
    EXPECT_TRUE(graph.ok() && *graph != nullptr) << graph.status();
    const dim3 grid = rank_.machine->last_launch().grid;
    return int64_t{grid.x} * grid.y * grid.z;
  }

  EmulatedRank rank_ = MakeEmulatedRank(
      {.precision = Precision::kBf16, .memory = size_t{4} << 30, .processors = kH100Processors});
};

// The batch norms of ResNet-50, with and without ReLU, in bf16.
TEST_F(LaunchShapeTest, BatchNormOccupiesAllProcessors) {
  for (const int64_t batch : {32, 128}) {
    for (const auto& [side, channels] :
         {std::pair<int64_t, int64_t>{7, 512}, {14, 256}, {28, 128}, {56, 64}}) {
      SCOPED_TRACE(::testing::Message() << batch << " images, " << side << " x " << channels);
      const RowsDims dims{.rows = batch * side * side, .channels = channels};
      const size_t n = SizeOf(dims);
      const DeviceArray<uint16_t> memory(*rank_.device, n, "test");
      const DeviceArray<int32_t> positive(*rank_.device, PositiveWords(dims), "test");
      const DeviceArray<float> parameters(*rank_.device, channels, "test");
      const Values x(memory.data(), n, DType::kBFloat16);
      const DeviceArray<double> sums(*rank_.device, 2 * channels, "test");
      const std::span<float> p = parameters.span();
      NormKernels& norm = rank_.kernels->norm();
      for (const std::span<int32_t> bits : {positive.span(), std::span<int32_t>()}) {
        for (const ConstValues& addend : {ConstValues(x), ConstValues()}) {
          EXPECT_GE(BlocksOf([&] { norm.BatchNormForward(dims, x, p, p, p, p, addend, bits, x); }),
                    kH100Processors);
        }
        EXPECT_GE(BlocksOf([&] {
                    norm.BatchNormBackward(dims, x, x, bits, p, p, p, dims.rows, sums.span(), x);
                  }),
                  kH100Processors);
      }
    }
  }
}

}  // namespace
}  // namespace cadre
