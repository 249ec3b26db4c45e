// A tile of 4 rows and 64 columns of the result has 16 sums in registers, which hide the latency of
// an instruction that adds two products to each of 16 elements. A step reads 4 vectors of the right
// factor and broadcasts 4 pairs of the left one for 16 such instructions, so that arithmetic limits
// the speed.
#include "kernels/cpu/bf16_tile_product.h"

#include <algorithm>

#include "kernels/cpu/vector_loops.h"
#if defined(__x86_64__)
#include <immintrin.h>
#define CADRE_BF16_LOOP __attribute__((target("avx512f,avx512vl,avx512bw,avx512bf16")))
#else
#define CADRE_BF16_LOOP
#endif

namespace cadre {
namespace {

constexpr int64_t kPairVector = 2 * kVectorSize;  // elements of a vector of pairs
static_assert(kPairColumns == kVectorSize);

// sum[i] + a[i] b[i] for the products of both halves of a pair.
#if defined(__x86_64__)
CADRE_BF16_LOOP CADRE_INLINE Vector AddPairs(Vector sum, BitVector a, BitVector b) {
  return reinterpret_cast<Vector>(_mm512_dpbf16_ps(
      reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
}
#else
CADRE_INLINE Vector AddPairs(Vector sum, BitVector a, BitVector b) {
  const BitVector low[2] = {a << 16, b << 16}, high[2] = {a & 0xffff0000U, b & 0xffff0000U};
  sum += Load<Vector>(&low[0]) * Load<Vector>(&low[1]);
  return sum + Load<Vector>(&high[0]) * Load<Vector>(&high[1]);
}
#endif

template <int kRows, int kVectors>
CADRE_BF16_LOOP CADRE_INLINE void SumPairs(const Bf16TileProduct& product, const Bf16Pairs& a,
                                           const Bf16* b, int64_t b_step, float* c,
                                           int64_t c_step) {
  Vector tile[kRows][kVectors] = {};
  for (int64_t p = 0; p < product.pairs; ++p) {
    BitVector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      right[v] = Load<BitVector>(&(b + p * b_step + v * kPairVector)->bits);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const BitVector left =
          BitVector{} + Load<uint32_t>(&(a.data + r * a.row_step + p * a.pair_step)->bits);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) tile[r][v] = AddPairs(tile[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* const to = c + r * c_step + v * kVectorSize;
      const Vector sum = tile[r][v] * product.scale;
      Store(to, product.add ? Load<Vector>(to) + sum : sum);
    }
  }
}

template <int kVectors>
CADRE_BF16_LOOP CADRE_INLINE void SumColumns(const Bf16TileProduct& product, Bf16Pairs a,
                                             const Bf16* b, int64_t b_step, float* c,
                                             int64_t c_step) {
  constexpr int kRows = 4;
  int64_t i = 0;
  for (; i + kRows <= product.m; i += kRows, a.data += kRows * a.row_step, c += kRows * c_step) {
    SumPairs<kRows, kVectors>(product, a, b, b_step, c, c_step);
  }
  for (; i < product.m; ++i, a.data += a.row_step, c += c_step) {
    SumPairs<1, kVectors>(product, a, b, b_step, c, c_step);
  }
}

CADRE_BF16_LOOP void Multiply(const Bf16TileProduct& product, const Bf16Pairs& a, const Bf16* b,
                              int64_t b_step, float* c, int64_t c_step) {
  constexpr int kVectors = 4;
  int64_t j = 0;
  for (; j + kVectors * kVectorSize <= product.n; j += kVectors * kVectorSize) {
    SumColumns<kVectors>(product, a, b + 2 * j, b_step, c + j, c_step);
  }
  for (; j < product.n; j += kVectorSize) {
    SumColumns<1>(product, a, b + 2 * j, b_step, c + j, c_step);
  }
}

CADRE_INLINE uint32_t PairOf(Bf16 first, Bf16 second) {
  return first.bits | uint32_t{second.bits} << 16;
}
CADRE_INLINE Bf16 AsBf16(Bf16 value) { return value; }
CADRE_INLINE Bf16 AsBf16(float value) { return RoundToBf16(value); }

template <typename T>
CADRE_VECTOR_LOOP void Interleave(int64_t columns, const T* first, const T* second, Bf16* to) {
  for (int64_t c = 0; c < columns; ++c) {
    Store(&to[2 * c].bits, PairOf(AsBf16(first[c]), AsBf16(second[c])));
  }
}

template <typename T>
CADRE_VECTOR_LOOP void InterleaveZeros(int64_t columns, const T* first, Bf16* to) {
  for (int64_t c = 0; c < columns; ++c) Store(&to[2 * c].bits, PairOf(AsBf16(first[c]), {}));
}

}  // namespace

void Bf16TileProduct::Run(const Bf16Pairs& a, const Bf16* b, int64_t b_step, float* c,
                          int64_t c_step) const {
  Multiply(*this, a, b, b_step, c, c_step);
}

template <typename T>
void InterleaveRows(int64_t columns, const T* first, const T* second, Bf16* to) {
  if (second == nullptr) return InterleaveZeros(columns, first, to);
  Interleave(columns, first, second, to);
}
template void InterleaveRows(int64_t columns, const float* first, const float* second, Bf16* to);
template void InterleaveRows(int64_t columns, const Bf16* first, const Bf16* second, Bf16* to);

void PairColumns(int64_t rows, int64_t columns, const Bf16* from, int64_t from_step,
                 int64_t to_rows, Bf16* to) {
  for (int64_t c = 0; c < columns; c += 2, to += 2 * to_rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const Bf16* const pair = from + r * from_step + c;
      to[2 * r] = pair[0];
      to[2 * r + 1] = c + 1 < columns ? pair[1] : Bf16();
    }
    std::fill_n(to + 2 * rows, 2 * (to_rows - rows), Bf16());
  }
}

}  // namespace cadre
