#include "kernels/cpu/column_sums.h"

namespace cadre {
namespace {

// Sums of x (see ForTiles).
template <typename T>
struct SumTiles {
  int64_t channels;
  const T* x;
  double* sums;

  template <typename V, int kCount>
  CADRE_INLINE void Add(int64_t first_row, int64_t rows, int64_t c) const {
    constexpr int64_t kWidth = sizeof(V) / sizeof(float);
    const T* from = x + first_row * channels + c;
    V sum[kCount] = {};
    for (int64_t r = 0; r < rows; ++r, from += channels) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        Prefetch(from + i * kWidth);
        sum[i] += Load<V>(from + i * kWidth);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) AddWide(sum[i], sums + c + i * kWidth);
  }
};

}  // namespace

template <typename T>
CADRE_VECTOR_LOOP void AddColumnSums(int64_t rows, int64_t channels, const T* x, double* to) {
  ForTiles(rows, channels, SumTiles<T>{channels, x, to});
}
template void AddColumnSums(int64_t rows, int64_t channels, const float* x, double* to);
template void AddColumnSums(int64_t rows, int64_t channels, const Bf16* x, double* to);

void ColumnSums(int threads, int64_t rows, int64_t channels, ConstValues x, std::span<float> sums) {
  std::vector<double> wide(sums.size());
  ByType(x.type(), [&](auto zero) {
    const auto* const from = Data<decltype(zero)>(x);
    SumByThread(threads, rows, channels, wide, [=](int64_t begin, int64_t end, double* to) {
      AddColumnSums(end - begin, channels, from + begin * channels, to);
    });
  });
  std::transform(wide.begin(), wide.end(), sums.begin(), [](double sum) -> float { return sum; });
}

}  // namespace cadre
