// y = x W^T for a batch of at most 32 rows: each weight is used for few products, so memory
// bandwidth limits the speed. BLAS, which packs W first, reads it twice and writes it once; here W
// is read once.
//
// Here x, the small factor, is transposed instead: x^T [in, batch] in rows of one or two vectors. A
// weight is then broadcast and multiplied with a vector of samples. A tile consists of eight rows
// of W. These are enough independent sums to hide the latency of a fused multiply-add, and not more
// rows than a set of the first-level cache has ways (rows are often a multiple of 4 KiB apart, and
// then map to the same set).
//
// Every sum is taken in the order of the inputs (odd and even ones separately), for any number of
// threads.
// Limits: AVX-512; see TakesSkinnyProduct.
#include "kernels/cpu/skinny_product.h"

#include <algorithm>

#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {
namespace {

constexpr int64_t kMaxRows = 2 * kVectorSize;
// Minimum number of outputs: transposing x costs as much as a few outputs.
constexpr int64_t kMinOuts = 64;
// Rows of weights in a tile; see the top of this file.
constexpr int kTileRows = 8;

int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// to[columns][width] = from[rows][columns]^T, zeros from column `rows` on.
CADRE_VECTOR_LOOP void TransposeInto(int64_t rows, int64_t columns, int64_t width,
                                     const float* __restrict from, float* __restrict to) {
  for (int64_t c0 = 0; c0 < columns; c0 += kVectorSize) {
    const int64_t c1 = std::min(columns, c0 + kVectorSize);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = c0; c < c1; ++c) to[c * width + r] = from[r * columns + c];
    }
    for (int64_t c = c0; c < c1; ++c) {
      for (int64_t r = rows; r < width; ++r) to[c * width + r] = 0;
    }
  }
}

// sums[row][batch] = kRows rows of weights times x^T [in, kGroups * kVectorSize]. Odd and even
// columns are summed separately.
template <int kRows, int kGroups>
CADRE_INLINE void ForwardTile(int64_t batch, int64_t in, const float* x, const float* w,
                              float* sums) {
  constexpr int64_t kWidth = kGroups * kVectorSize;
  Vector tile[2][kRows][kGroups] = {};
  int64_t i = 0;
  for (; i + 2 <= in; i += 2, x += 2 * kWidth) {
    if (i % kVectorSize == 0) {
      for (int r = 0; r < kRows; ++r) Prefetch<128>(w + r * in + i);
    }
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vector weight = w[r * in + i + odd] - Vector{};
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g) {
          tile[kGroups == 1 ? odd : 0][r][g] +=
              weight * Load<Vector>(x + odd * kWidth + g * kVectorSize);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float row[kWidth];
    for (int g = 0; g < kGroups; ++g) {
      Vector sum = tile[0][r][g] + tile[1][r][g];
      if (i < in) sum += w[r * in + i] * Load<Vector>(x + g * kVectorSize);
      Store(row + g * kVectorSize, sum);
    }
    for (int64_t n = 0; n < batch; ++n) sums[r * batch + n] = row[n];
  }
}

template <int kGroups>
CADRE_INLINE void ForwardRows(int64_t batch, int64_t in, int64_t rows, const float* x,
                              const float* w, float* sums) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    ForwardTile<kTileRows, kGroups>(batch, in, x, w + r * in, sums + r * batch);
  }
  for (; r < rows; ++r) ForwardTile<1, kGroups>(batch, in, x, w + r * in, sums + r * batch);
}

CADRE_VECTOR_LOOP void ForwardOneGroup(int64_t batch, int64_t in, int64_t rows, const float* x,
                                       const float* w, float* sums) {
  ForwardRows<1>(batch, in, rows, x, w, sums);
}
CADRE_VECTOR_LOOP void ForwardTwoGroups(int64_t batch, int64_t in, int64_t rows, const float* x,
                                        const float* w, float* sums) {
  ForwardRows<2>(batch, in, rows, x, w, sums);
}

}  // namespace

bool TakesSkinnyProduct(const FullyConnectedDims& dims) {
#if defined(__x86_64__)
  return dims.batch <= kMaxRows && dims.out >= kMinOuts && __builtin_cpu_supports("avx512f") > 0;
#else
  return dims.batch < 0;
#endif
}

int64_t SkinnyScratch(const FullyConnectedDims& dims) {
  return RoundUp(dims.batch, kVectorSize) * dims.in;
}

void SkinnyForward(int threads, const FullyConnectedDims& dims, const float* x, const float* w,
                   float* scratch, float* y_transposed) {
  const int64_t width = RoundUp(dims.batch, kVectorSize);
  TransposeInto(dims.batch, dims.in, width, x, scratch);
  const auto loop = width == kVectorSize ? ForwardOneGroup : ForwardTwoGroups;
  const int64_t tiles = RoundUp(dims.out, kTileRows) / kTileRows;
  ForParts(threads, tiles, kTileRows * dims.in, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTileRows;
    loop(dims.batch, dims.in, std::min(dims.out, end * kTileRows) - first, scratch,
         w + first * dims.in, y_transposed + first * dims.batch);
  });
}

}  // namespace cadre
