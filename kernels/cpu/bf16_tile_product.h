// Products of bf16 matrices that fit in a cache, with fp32 sums, for callers that arrange the
// factors themselves. oneDNN's products of this size take longer to begin than to compute.
//
// The terms of a sum are taken in pairs, as the instructions of AVX512_BF16 do: element (i, 2 p) of
// the left factor and its neighbor (i, 2 p + 1) are adjacent in memory, and so are (2 p, j) and
// (2 p + 1, j) of the right one.
//
// Thread-safe (functions of their arguments). For the .cc files of kernels/cpu only.
#pragma once

#include <cstdint>

#include "tensor/elements.h"

namespace cadre {

// The pair p of row i is at data + i * row_step + p * pair_step.
struct Bf16Pairs {
  const Bf16* data = nullptr;
  int64_t row_step = 0, pair_step = 0;
};

// Columns of the right factor must be a multiple of this.
inline constexpr int64_t kPairColumns = 16;

// c[m, n] = scale * a[m, 2 pairs] b[2 pairs, n], or this is added to c; c_step elements between
// rows of c. b: [pairs][n][2], with b_step elements between pairs. Each sum is taken in the order
// of the pairs. Requires: AVX512_BF16; n is a multiple of kPairColumns.
struct Bf16TileProduct {
  int64_t m = 0, n = 0, pairs = 0;
  float scale = 1;
  bool add = false;
  void Run(const Bf16Pairs& a, const Bf16* b, int64_t b_step, float* c, int64_t c_step) const;
};

// to[columns][2]: the elements of two rows, rounded to bf16, by turns. A null `second` stands for
// zeros.
template <typename T>
void InterleaveRows(int64_t columns, const T* first, const T* second, Bf16* to);

// to[columns / 2][to_rows][2] = from[rows][columns]: pairs of columns, row by row, with zeros for
// rows and a column that `from` does not have. Requires: rows <= to_rows.
void PairColumns(int64_t rows, int64_t columns, const Bf16* from, int64_t from_step,
                 int64_t to_rows, Bf16* to);

}  // namespace cadre
