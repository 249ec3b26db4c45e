// Sums over the rows of a matrix, column by column, at memory bandwidth: a few rows are summed in
// fp32, with the rounding errors of only a few additions, and these sums are added in double.
// Several vectors of columns are summed together, so that each row is read in long runs, which
// hardware prefetchers follow.
//
// Thread-safe (functions of their arguments).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {

// Calls tiles.Add<V, kCount>(row, rows, column) for tiles that cover a matrix. A tile has up to 32
// rows, whose sums are taken in fp32, and kCount adjacent Vs of columns; V is Vector or float.
template <typename Tiles>
CADRE_INLINE void ForTiles(int64_t rows, int64_t channels, const Tiles& tiles) {
  constexpr int64_t kRowsInFloat = 32;
  for (int64_t r = 0; r < rows; r += kRowsInFloat) {
    const int64_t n = std::min(kRowsInFloat, rows - r);
    int64_t c = 0;
    for (; c + 8 * kVectorSize <= channels; c += 8 * kVectorSize) {
      tiles.template Add<Vector, 8>(r, n, c);
    }
    for (; c + 4 * kVectorSize <= channels; c += 4 * kVectorSize) {
      tiles.template Add<Vector, 4>(r, n, c);
    }
    for (; c + kVectorSize <= channels; c += kVectorSize) tiles.template Add<Vector, 1>(r, n, c);
    for (; c < channels; ++c) tiles.template Add<float, 1>(r, n, c);
  }
}

// Sums over rows in several threads: add(begin, end, to) adds the sums of an interval of rows to
// `to`, an array of the size of `sums`. Each thread processes one interval, and the threads' sums
// are added in the order of the intervals.
template <typename Add>
void SumByThread(int threads, int64_t rows, int64_t channels, std::span<double> sums, Add add) {
  std::fill(sums.begin(), sums.end(), 0.0);
  const int parts = PartsFor(threads, rows, channels);
  // The first thread adds to the result directly. The other threads' sums are padded by a cache
  // line, so that no two threads write to the same line.
  const int64_t stride = std::ssize(sums) + 8;
  std::vector<double> others((parts - 1) * stride);
  ForEachPart(parts, rows, [&](int part, int64_t begin, int64_t end) {
    add(begin, end, part == 0 ? sums.data() : others.data() + (part - 1) * stride);
  });
  for (int part = 1; part < parts; ++part) {
    const double* other = others.data() + (part - 1) * stride;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += other[i];
  }
}

// to[channels] += the sum of x[rows, channels] over its rows, in one thread.
template <typename T>
void AddColumnSums(int64_t rows, int64_t channels, const T* x, double* to);

// sums[channels] = the sum of x[rows, channels] over its rows.
void ColumnSums(int threads, int64_t rows, int64_t channels, ConstValues x, std::span<float> sums);

}  // namespace cadre
