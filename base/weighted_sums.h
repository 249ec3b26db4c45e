// Sums of vectors of fp32 values, weighted. Equal inputs give equal bits on every machine: each
// product and each sum is rounded separately (no fused multiply-add).
//
// Thread-safe. All arguments of a call have one length, and do not overlap.
#pragma once

#include <span>

namespace cadre {

// sum = weight * x. A weight of 1 preserves every bit.
void SetWeighted(float weight, std::span<const float> x, std::span<float> sum);

// sum = sum + weight * x.
void AddWeighted(float weight, std::span<const float> x, std::span<float> sum);

// sum = sum + (x - y).
void AddDifference(std::span<const float> x, std::span<const float> y, std::span<float> sum);

}  // namespace cadre
