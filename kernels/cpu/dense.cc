// Fully connected layers as matrix products over plain layouts. oneDNN's inner-product primitive
// prefers blocked weights; converting millions of weights before every step, and their gradients
// after it, takes longer than the products themselves.
//
// Forward has three forms, chosen by the extents (batch rows of `in` features to `out`):
//
//   skinny      few rows, on AVX-512: skinny_product.h.
//   transposed  y^T = W x^T, transposed afterwards. The library repacks its second factor, here x
//               with batch * in elements; the transposition reads and writes y once more.
//   direct      y = x W^T, which repacks W, in * out elements.
//
// The second moves about batch * in + 2 * batch * out elements, the third in * out: for long
// batches (tokens of text) the direct form is faster, for few rows and large matrices the
// transposed one.
//
// With bf16 factors the direct form is the only one, by oneDNN's product for them. The weights are
// rounded to bf16 before it, which moves them once more.
//
// Attention is in attention.cc.
//
// Batched products. In fp32 the threads divide the sequence of the rows of all products (of their
// columns, if b is transposed: the library repacks b, and each part repacks its own rows only).
// Nothing is divided within a sum, and BatchedProductUnits names the cases in which the library
// computes a part with the bits of the whole product; in the others a thread computes whole
// products. With bf16 factors all threads compute one product after the other, because they share
// the library's memory.
// Products of vectors do not use the library, whose start takes longer than such a product.
//
// Embeddings. The features of the table are divided among threads, so that every sum is taken in
// the order of the tokens.
#include <algorithm>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/skinny_product.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "tensor/interval.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

// y[batch, out] = t[out, batch]^T + b (no bias if b is null), in tiles for which both arrays stay
// in the cache.
CADRE_VECTOR_LOOP void TransposeAndAdd(int64_t batch, int64_t out, const float* t, const float* b,
                                       float* y) {
  constexpr int64_t kTile = 16;
  for (int64_t o0 = 0; o0 < out; o0 += kTile) {
    const int64_t o1 = o0 + kTile < out ? o0 + kTile : out;
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t o = o0; o < o1; ++o) {
        y[n * out + o] = t[o * batch + n] + (b == nullptr ? 0.0F : b[o]);
      }
    }
  }
}

template <typename T>
CADRE_VECTOR_LOOP void AddTo(int64_t n, const T* __restrict x, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] += Load<float>(x + i);
}

// y = w + position; a null position counts as zeros.
template <typename T>
CADRE_VECTOR_LOOP void LookUp(int64_t n, const float* w, const float* position, T* __restrict y) {
  if (position == nullptr) {
    for (int64_t i = 0; i < n; ++i) Store(y + i, w[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) Store(y + i, w[i] + position[i]);
  }
}

// c = the sum of a * b.
template <typename T, typename C>
CADRE_VECTOR_LOOP void DotProduct(int64_t n, const T* a, const T* b, C* c) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += Load<float>(a + i) * Load<float>(b + i);
  Store(c, sum);
}

// c = a * b of one number a.
template <typename T, typename C>
CADRE_VECTOR_LOOP void ScaleRow(int64_t n, const T* a, const T* b, C* __restrict c) {
  const float factor = Load<float>(a);
  for (int64_t i = 0; i < n; ++i) Store(c + i, factor * Load<float>(b + i));
}

// y[batch, out] += b, in place; b may be null.
void AddBias(int threads, int64_t batch, int64_t out, const float* b, float* y) {
  if (b == nullptr) return;
  ForParts(threads, batch, out, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) AddTo(out, b, y + n * out);
  });
}

// Whether the direct form moves fewer elements than the transposed one; see the top of this file.
bool MovesLessDirectly(const FullyConnectedDims& dims) {
  return dims.batch * (dims.in + 2 * dims.out) > dims.in * dims.out;
}

// The number of units into which threads may divide `length` rows or columns of a product with sums
// of k terms.
int64_t BatchedProductUnits(int64_t length, int64_t k) {
  constexpr int64_t kMinLength = 16;
  return PartsHaveBitsOfWhole(k) ? std::max<int64_t>(1, length / kMinLength) : 1;
}

// The row of the table for token i.
int64_t TableRow(ConstFloatSpan ids, int64_t i) { return ids[i]; }

class CpuDense {
 public:
  explicit CpuDense(CpuContext& cpu) : cpu_(cpu) {}

  // The type is that of the outputs: inputs without elements may have any.

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x, ConstFloatSpan w,
                             ConstFloatSpan b, Values y) {
    if (y.empty()) return;
    const ScopedThreads threads(cpu_.threads);
    if (y.type() == DType::kFloat32) return Forward(dims, x.floats(), w, b, y.floats());
    cpu_.Bf16Product({.m = dims.batch,
                      .n = dims.out,
                      .k = dims.in,
                      .transpose_b = true,
                      .with_bias = !b.empty(),
                      .c = y.type()},
                     x, cpu_.WeightsAs(y.type(), w), b, y);
  }

  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy, ConstFloatSpan w,
                                  Values dx) {
    if (dx.empty()) return;
    const auto [batch, in, out] = dims;
    const ScopedThreads threads(cpu_.threads);
    if (dx.type() == DType::kFloat32) {
      return MatrixProduct(batch, in, out, 1, {Data<float>(dy), out}, {w.data(), in},
                           Data<float>(dx), in);
    }
    cpu_.Bf16Product({.m = batch, .n = in, .k = out, .c = dx.type()}, dy,
                     cpu_.WeightsAs(dx.type(), w), {}, dx);
  }

  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     FloatSpan dw, FloatSpan db) {
    const auto [batch, in, out] = dims;
    const ScopedThreads threads(cpu_.threads);
    if (x.type() == DType::kFloat32) {
      MatrixProduct(out, in, batch, 1, {Data<float>(dy), out, true}, {Data<float>(x), in},
                    dw.data(), in);
    } else {
      cpu_.Bf16Product({.m = out, .n = in, .k = batch, .transpose_a = true}, dy, x, {}, dw);
    }
    if (!db.empty()) ColumnSums(cpu_.threads, batch, out, dy, db);
  }

  void FullyConnectedAddGradients(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw, FloatSpan db) {
    const auto [batch, in, out] = dims;
    const ScopedThreads threads(cpu_.threads);
    if (x.type() == DType::kFloat32) {
      AddMatrixProduct(out, in, batch, 1, {Data<float>(dy), out, true}, {Data<float>(x), in},
                       dw.data(), in);
    } else if (batch > 0) {
      cpu_.Bf16Product({.m = out, .n = in, .k = batch, .transpose_a = true, .add = true}, dy, x, {},
                       dw);
    }
    if (db.empty()) return;
    std::vector<float> sums(db.size());
    ColumnSums(cpu_.threads, batch, out, dy, sums);
    AddTo(std::ssize(sums), sums.data(), db.data());
  }

  void BatchedProduct(const BatchedProductDims& dims, ConstValues a, ConstValues b, Values c) {
    if (c.empty()) return;
    const auto [batch, m, n, k, transpose_a, transpose_b] = dims;
    if (m == 1 && k > 0 && (n == 1 || k == 1)) return VectorProducts(batch, n, k, a, b, c);
    const LayerSizes one = SizesOf(BatchedProductDims{1, m, n, k});
    if (c.type() != DType::kFloat32 || a.type() != DType::kFloat32) {
      const ScopedThreads threads(cpu_.threads);
      for (int64_t i = 0; i < batch; ++i) {
        cpu_.Bf16Product({.m = m,
                          .n = n,
                          .k = k,
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .c = c.type()},
                         a.subspan(i * one.x, one.x), b.subspan(i * one.w, one.w), {},
                         c.subspan(i * one.y, one.y));
      }
      return;
    }
    const ScopedThreads threads(1);
    const int64_t length = transpose_b ? n : m;
    const int64_t units = BatchedProductUnits(length, k);
    ForParts(cpu_.threads, batch * units, m * n * k / units, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t i = begin / units;
        const int64_t stop = std::min(end, (i + 1) * units);
        const Interval part{PartBegin(length, begin - i * units, units),
                            PartBegin(length, stop - i * units, units)};
        MatrixView x{Data<float>(a) + i * one.x, transpose_a ? m : k, transpose_a};
        MatrixView w{Data<float>(b) + i * one.w, transpose_b ? k : n, transpose_b};
        float* const y = Data<float>(c) + i * one.y;
        if (transpose_b) {
          w.data += part.begin * k;
          MatrixProduct(m, part.size(), k, 1, x, w, y + part.begin, n);
        } else {
          x.data += part.begin * (transpose_a ? 1 : k);
          MatrixProduct(part.size(), n, k, 1, x, w, y + part.begin * n, n);
        }
        begin = stop;
      }
    });
  }

  void EmbeddingForward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan w,
                        ConstFloatSpan positions, Values y) {
    const int64_t n = dims.features;
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, std::ssize(ids), n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float* position = positions.empty()
                                      ? nullptr
                                      : positions.data() + (dims.first_token + i % dims.tokens) * n;
          LookUp(n, w.data() + TableRow(ids, i) * n, position, Data<T>(y) + i * n);
        }
      });
    });
  }

  void EmbeddingBackward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstValues dy,
                         FloatSpan dw, FloatSpan dpositions) {
    const int64_t n = dims.features;
    ForParts(cpu_.threads, std::ssize(dw), [&](int64_t begin, int64_t end) {
      std::fill(dw.begin() + begin, dw.begin() + end, 0.0F);
    });
    std::fill(dpositions.begin(), dpositions.end(), 0.0F);
    ByType(dy.type(), [&](auto zero) {
      using T = decltype(zero);
      // The features are divided among threads, so that every sum is taken in the order of the
      // tokens.
      ForParts(cpu_.threads, n, std::ssize(ids), [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < std::ssize(ids); ++i) {
          const T* from = Data<T>(dy) + i * n + begin;
          AddTo(end - begin, from, dw.data() + TableRow(ids, i) * n + begin);
          if (dpositions.empty()) continue;
          const int64_t position = dims.first_token + i % dims.tokens;
          AddTo(end - begin, from, dpositions.data() + position * n + begin);
        }
      });
    });
  }

  void AttentionForward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                        Values context, FloatSpan statistics, Values scratch) {
    if (qkv.empty()) {
      return cpu_.reference->dense().AttentionForward(dims, ids, qkv, context, statistics, scratch);
    }
    CpuAttentionForward(
        cpu_.threads, dims, ids, qkv,
        cpu_.workspace.Floats(0, AttentionForwardScratch(cpu_.threads, dims, qkv.type())), context,
        statistics.data());
  }

  void AttentionBackward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                         ConstValues context, ConstValues dcontext, ConstFloatSpan statistics,
                         Values /*scratch*/, Values dqkv) {
    if (qkv.empty()) return;
    CpuAttentionBackward(
        cpu_.threads, dims, ids, qkv, context, dcontext, statistics.data(),
        cpu_.workspace.Floats(0, AttentionBackwardScratch(cpu_.threads, dims, qkv.type())), dqkv);
  }

 private:
  // c[batch, n] = a[batch, k] b[batch, k, n]. Requires: n or k is 1.
  void VectorProducts(int64_t batch, int64_t n, int64_t k, ConstValues a, ConstValues b, Values c) {
    ByType(a.type(), [&](auto factor) {
      ByType(c.type(), [&](auto product) {
        using T = decltype(factor);
        using C = decltype(product);
        ForParts(cpu_.threads, batch, n * k, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            if (k == 1) {
              ScaleRow(n, Data<T>(a) + i, Data<T>(b) + i * n, Data<C>(c) + i * n);
            } else {
              DotProduct(k, Data<T>(a) + i * k, Data<T>(b) + i * k, Data<C>(c) + i);
            }
          }
        });
      });
    });
  }

  // In fp32. Requires: ScopedThreads.
  void Forward(const FullyConnectedDims& dims, ConstFloatSpan x, ConstFloatSpan w, ConstFloatSpan b,
               FloatSpan y) {
    const auto [batch, in, out] = dims;
    const float* const bias = b.empty() ? nullptr : b.data();
    const bool skinny = !x.empty() && !y.empty() && TakesSkinnyProduct(dims);
    if (!skinny && MovesLessDirectly(dims)) {
      MatrixProduct(batch, out, in, 1, {x.data(), in}, {w.data(), in, true}, y.data(), out);
      return AddBias(cpu_.threads, batch, out, bias, y.data());
    }
    float* const transposed = cpu_.workspace.Floats(0, y.size());
    if (skinny) {
      SkinnyForward(cpu_.threads, dims, x.data(), w.data(),
                    cpu_.workspace.Floats(1, SkinnyScratch(dims)), transposed);
    } else {
      MatrixProduct(out, batch, in, 1, {w.data(), in}, {x.data(), in, true}, transposed, batch);
    }
    TransposeAndAdd(batch, out, transposed, bias, y.data());
  }

  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<DenseKernels> MakeCpuDense(CpuContext& cpu) {
  return std::make_unique<HostDense<SpanCaller<CpuDense>>>(cpu);
}

}  // namespace cadre
