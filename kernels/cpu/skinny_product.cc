#include "kernels/cpu/skinny_product.h"

#include <algorithm>

#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {
namespace {

constexpr int64_t kMostRows = 2 * kLanes;
// Transposing x costs as much as a few outputs.
constexpr int64_t kLeastOuts = 64;
// Rows of weights that a tile works on: with one or two registers each they are
// enough chains of sums to hide the latency of one. Rows are often a multiple of 4 KiB apart, so
// that all fall into one set of the first-level cache; eight fit.
constexpr int kTileRows = 8;
int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// to[columns][width] = from[rows][columns]^T, zeros from column `rows` on.
CADRE_VECTOR_LOOP void TransposeInto(int64_t rows, int64_t columns, int64_t width,
                                     const float* __restrict from, float* __restrict to) {
  for (int64_t c0 = 0; c0 < columns; c0 += kLanes) {
    const int64_t c1 = std::min(columns, c0 + kLanes);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = c0; c < c1; ++c) to[c * width + r] = from[r * columns + c];
    }
    for (int64_t c = c0; c < c1; ++c) {
      for (int64_t r = rows; r < width; ++r) to[c * width + r] = 0;
    }
  }
}

// sums[row][batch] of kRows rows of weights with x^T [in, kGroups * kLanes]. Odd and even columns
// have their own sums.
template <int kRows, int kGroups>
CADRE_INLINE void ForwardTile(int64_t batch, int64_t in, const float* x, const float* w,
                              float* sums) {
  constexpr int64_t kWidth = kGroups * kLanes;
  Lanes tile[2][kRows][kGroups] = {};
  int64_t i = 0;
  for (; i + 2 <= in; i += 2, x += 2 * kWidth) {
    if (i % kLanes == 0) {
      for (int r = 0; r < kRows; ++r) Prefetch<128>(w + r * in + i);
    }
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Lanes weight = w[r * in + i + odd] - Lanes{};
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g) {
          tile[kGroups == 1 ? odd : 0][r][g] += weight * Load<Lanes>(x + odd * kWidth + g * kLanes);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float row[kWidth];
    for (int g = 0; g < kGroups; ++g) {
      Lanes sum = tile[0][r][g] + tile[1][r][g];
      if (i < in) sum += w[r * in + i] * Load<Lanes>(x + g * kLanes);
      Store(row + g * kLanes, sum);
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
  return dims.batch <= kMostRows && dims.out >= kLeastOuts && __builtin_cpu_supports("avx512f") > 0;
#else
  return dims.batch < 0;
#endif
}

int64_t SkinnyScratch(const FullyConnectedDims& dims) {
  return RoundUp(dims.batch, kLanes) * dims.in;
}

void SkinnyForward(int threads, const FullyConnectedDims& dims, const float* x, const float* w,
                   float* scratch, float* y_transposed) {
  const int64_t width = RoundUp(dims.batch, kLanes);
  TransposeInto(dims.batch, dims.in, width, x, scratch);
  const auto loop = width == kLanes ? ForwardOneGroup : ForwardTwoGroups;
  const int64_t tiles = RoundUp(dims.out, kTileRows) / kTileRows;
  ForParts(threads, tiles, kTileRows * dims.in, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTileRows;
    loop(dims.batch, dims.in, std::min(dims.out, end * kTileRows) - first, scratch,
         w + first * dims.in, y_transposed + first * dims.batch);
  });
}

}  // namespace cadre
