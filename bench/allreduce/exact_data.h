// Test data whose sums are exact in every type and order, so that a single wrong bit is detected.
//
// The data are whole numbers so small that the sum over all ranks is at most 256, which is exact in
// bfloat16. They depend on rank and position, so that a chunk that is added twice, omitted or
// written to another position changes the result.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace cadre::bench {

// With more ranks the sums would exceed 256.
inline constexpr int kMaxExactRanks = 128;

// Fills `data` with the addends of `rank`. Requires: kFloat32, kBFloat16 or kFloat16; rank < ranks;
// 1 <= ranks <= kMaxExactRanks.
void FillExact(DType dtype, int rank, int ranks, std::span<std::byte> data);

// The number of elements of `data` that differ from the sum over all ranks.
int64_t CountErrors(DType dtype, int ranks, std::span<const std::byte> data);

}  // namespace cadre::bench
