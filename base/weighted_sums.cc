// This file is compiled with -ffp-contract=off (CMakeLists.txt), so that no fused multiply-add is
// used. The loops are compiled for several levels of the instruction set; separate multiplications
// and additions give equal bits for every vector width.
#include "base/weighted_sums.h"

#include <algorithm>
#include <cstddef>

#include "base/vector_loop.h"

namespace cadre {
namespace {

CADRE_VECTOR_LOOP
void Scale(float weight, const float* __restrict x, float* __restrict sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] = weight * x[i];
}

CADRE_VECTOR_LOOP
void AddScaled(float weight, const float* __restrict x, float* __restrict sum, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float product = weight * x[i];
    sum[i] = sum[i] + product;
  }
}

CADRE_VECTOR_LOOP
void AddDifferences(const float* __restrict x, const float* __restrict y, float* __restrict sum,
                    size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float difference = x[i] - y[i];
    sum[i] = difference + sum[i];
  }
}

}  // namespace

void SetWeighted(float weight, std::span<const float> x, std::span<float> sum) {
  if (weight == 1.0F) {
    std::copy(x.begin(), x.end(), sum.begin());
    return;
  }
  Scale(weight, x.data(), sum.data(), x.size());
}

void AddWeighted(float weight, std::span<const float> x, std::span<float> sum) {
  AddScaled(weight, x.data(), sum.data(), x.size());
}

void AddDifference(std::span<const float> x, std::span<const float> y, std::span<float> sum) {
  AddDifferences(x.data(), y.data(), sum.data(), x.size());
}

}  // namespace cadre
