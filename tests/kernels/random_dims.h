// Random extents of tests, the same in every program.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "tests/kernels/testing.h"

namespace cadre {

// Seeds of the random convolutions that every back end computes: 0 to kRandomCases - 1.
inline constexpr uint64_t kRandomCases = 200;

// The random numbers of one case, in sequence.
class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : seed_(seed) {}
  int64_t Next(int64_t low, int64_t high) { return Draw(low, high, seed_, counter_++); }
  // Zero in one of twenty cases.
  int64_t Extent(int64_t high) { return Next(0, 19) == 0 ? 0 : Next(1, high); }

 private:
  const uint64_t seed_;
  uint64_t counter_ = 0;
};

// A window with as many outputs as fit, or one more or fewer.
inline WindowDims RandomWindow(RandomNumbers& draws, int64_t max_dilation) {
  WindowDims w{.in_height = draws.Extent(12),
               .in_width = draws.Extent(12),
               .kernel_height = draws.Next(1, 5),
               .kernel_width = draws.Next(1, 5),
               .stride_height = draws.Next(1, 3),
               .stride_width = draws.Next(1, 3),
               .dilation = draws.Next(1, max_dilation)};
  w.pad_top = draws.Next(0, w.kernel_height);
  w.pad_left = draws.Next(0, w.kernel_width);
  w = Fitted(w, draws.Next(0, w.kernel_height), draws.Next(0, w.kernel_width));
  w.out_height = std::max<int64_t>(0, w.out_height + draws.Next(-1, 1));
  w.out_width = std::max<int64_t>(0, w.out_width + draws.Next(-1, 1));
  return w;
}

// Any extents; some are 0.
inline ConvolutionDims RandomConvolution(uint64_t seed) {
  RandomNumbers draws(seed);
  const int64_t groups = draws.Next(0, 2) > 0 ? 1 : draws.Next(1, 4);
  // In every third case the channels fill whole vectors.
  const int64_t unit = groups * (draws.Next(0, 2) == 0 ? 16 : 1);
  const int64_t in_channels = unit * draws.Extent(3), out_channels = unit * draws.Extent(5);
  return Convolution(draws.Extent(3), in_channels, out_channels, RandomWindow(draws, 3), groups);
}

}  // namespace cadre
