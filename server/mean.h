// The weighted mean of a round: sum over groups, in group order, of weight * value, in fp32.
//
// Equal inputs in equal order give equal bits on every machine: each product and each sum is
// rounded separately (no fused multiply-add), and the order of the sum is fixed.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cadre {

// samples / total in double, rounded once to float; exactly 1 for a single participant.
// Requires: the total is not 0.
std::vector<float> MeanWeights(std::span<const uint64_t> samples);

// sum = weight * x. A weight of 1 preserves every bit.
void SetWeighted(float weight, std::span<const float> x, std::span<float> sum);

// sum = sum + weight * x.
void AddWeighted(float weight, std::span<const float> x, std::span<float> sum);

}  // namespace cadre
