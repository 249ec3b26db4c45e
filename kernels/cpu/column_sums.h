// Sums over rows, column by column.
//
// Thread-safe (functions of their arguments).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/threads.h"

namespace cadre {

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
void AddColumnSums(int64_t rows, int64_t channels, const float* x, double* to);

// sums[channels] = the sum of x[rows, channels] over its rows.
void ColumnSums(int threads, int64_t rows, int64_t channels, const float* x, std::span<float> sums);

}  // namespace cadre
