// Numbers whose sums are exact in every type and order, so that one wrong bit anywhere is seen.
//
// Whole numbers so small that the sum over all ranks is at most 256, which bfloat16 still holds
// exactly; they depend on rank and position, so that a piece that is added twice, left out or put
// elsewhere changes the result.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace cadre::bench {

// More ranks than that have no exact sums of this kind.
inline constexpr int kMaxExactRanks = 128;

// Fills `data` with the part of `rank`. Requires: kFloat32, kBFloat16 or kFloat16; rank < ranks;
// 1 <= ranks <= kMaxExactRanks.
void FillExact(DType dtype, int rank, int ranks, std::span<std::byte> data);

// How many elements of `data` are not the sum over all ranks.
int64_t CountErrors(DType dtype, int ranks, std::span<const std::byte> data);

}  // namespace cadre::bench
