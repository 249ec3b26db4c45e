#include "kernels/extents.h"

#include <glog/logging.h>

#include <initializer_list>

namespace cadre {
namespace {

void CheckNotNegative(std::initializer_list<int64_t> extents) {
  for (const int64_t extent : extents) CHECK_GE(extent, 0);
}

}  // namespace

int64_t WindowsAlong(int64_t in, int64_t kernel, int64_t stride, int64_t padding) {
  const int64_t room = in + 2 * padding - kernel;
  return room < 0 ? 0 : room / stride + 1;
}

LayerSizes SizesOf(const ConvolutionDims& d) {
  CheckNotNegative({d.batch, d.in_channels, d.in_height, d.in_width, d.out_channels, d.padding});
  CHECK_GE(d.kernel, 1);
  CHECK_GE(d.stride, 1);
  CHECK_EQ(d.out_height, WindowsAlong(d.in_height, d.kernel, d.stride, d.padding));
  CHECK_EQ(d.out_width, WindowsAlong(d.in_width, d.kernel, d.stride, d.padding));
  return {.x = d.batch * d.in_channels * d.in_height * d.in_width,
          .w = d.out_channels * d.in_channels * d.kernel * d.kernel,
          .b = d.out_channels,
          .y = d.batch * d.out_channels * d.out_height * d.out_width};
}

LayerSizes SizesOf(const PoolingDims& d) {
  CheckNotNegative({d.batch, d.channels, d.in_height, d.in_width, d.padding});
  CHECK_GE(d.kernel, 1);
  CHECK_GE(d.stride, 1);
  CHECK_EQ(d.out_height, WindowsAlong(d.in_height, d.kernel, d.stride, d.padding));
  CHECK_EQ(d.out_width, WindowsAlong(d.in_width, d.kernel, d.stride, d.padding));
  return {.x = d.batch * d.channels * d.in_height * d.in_width,
          .y = d.batch * d.channels * d.out_height * d.out_width};
}

LayerSizes SizesOf(const FullyConnectedDims& d) {
  CheckNotNegative({d.batch, d.in, d.out});
  return {.x = d.batch * d.in, .w = d.out * d.in, .b = d.out, .y = d.batch * d.out};
}

void CheckSize(absl::string_view name, size_t actual, int64_t wanted) {
  CHECK_EQ(static_cast<int64_t>(actual), wanted) << "elements of " << name;
}

}  // namespace cadre
