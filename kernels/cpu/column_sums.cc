// Sums over the rows of a matrix, column by column, at memory bandwidth: a few rows are summed in
// fp32, with the rounding errors of only a few additions, and these sums are added in double (the
// scheme of batch_norm in norm.cc). Eight vectors of columns are summed together, so that each row
// is read in long runs, which hardware prefetchers follow.
#include "kernels/cpu/column_sums.h"

#include "kernels/cpu/vector_loops.h"

namespace cadre {

namespace {

// Sums kCount adjacent Vs (V is Vector or float) in float over `rows` rows.
template <typename V, int kCount>
CADRE_INLINE void SumTile(int64_t rows, int64_t channels, const float* x, double* to) {
  constexpr int64_t kWidth = sizeof(V) / sizeof(float);
  V sum[kCount] = {};
  for (int64_t r = 0; r < rows; ++r, x += channels) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      Prefetch(x + i * kWidth);
      sum[i] += Load<V>(x + i * kWidth);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) AddWide(sum[i], to + i * kWidth);
}

}  // namespace

CADRE_VECTOR_LOOP void AddColumnSums(int64_t rows, int64_t channels, const float* x, double* to) {
  constexpr int64_t kRowsInFloat = 32;
  for (int64_t r = 0; r < rows; r += kRowsInFloat, x += kRowsInFloat * channels) {
    const int64_t n = std::min(kRowsInFloat, rows - r);
    int64_t c = 0;
    for (; c + 8 * kVectorSize <= channels; c += 8 * kVectorSize) {
      SumTile<Vector, 8>(n, channels, x + c, to + c);
    }
    for (; c + kVectorSize <= channels; c += kVectorSize)
      SumTile<Vector, 1>(n, channels, x + c, to + c);
    for (; c < channels; ++c) SumTile<float, 1>(n, channels, x + c, to + c);
  }
}

void ColumnSums(int threads, int64_t rows, int64_t channels, const float* x,
                std::span<float> sums) {
  std::vector<double> wide(sums.size());
  SumByThread(threads, rows, channels, wide, [=](int64_t begin, int64_t end, double* to) {
    AddColumnSums(end - begin, channels, x + begin * channels, to);
  });
  std::transform(wide.begin(), wide.end(), sums.begin(), [](double sum) -> float { return sum; });
}

}  // namespace cadre
