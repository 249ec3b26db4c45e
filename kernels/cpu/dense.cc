// Fully connected layers as matrix products over plain layouts. oneDNN's inner-product primitive
// prefers blocked weights; converting millions of weights before every step, and their gradients
// after it, takes longer than the products themselves.
//
// Forward is computed as y^T = W x^T and transposed afterwards: in the form y = x W^T the library
// repacks all of W instead of the much smaller x. Small batches use skinny_product.h.
//
// Multi-head attention (Vaswani et al. 2017) with the probabilities kept for backward.
//
// One head of one sample is processed at a time: scores = q k^T, softmax row by row, context = p v.
// Its [tokens, tokens] scores stay in the second-level cache between the two products, so that main
// memory is read and written once. Backward recomputes nothing: with dp = dcontext v^T, the
// gradient of the scores is p * (dp - sum(p * dp)), and three more products give dq, dk and dv.
//
// q, k and v of a token are interleaved in one array; oneDNN's matrix product takes row strides, so
// none is copied. Heads are divided among threads if there are enough of them, otherwise threads
// share each product. The order of sums depends on the number of threads only.
//
// Limit: memory is quadratic in the tokens, because the probabilities are an output. The CUDA back
// end has a fused form (cudnn_plan.cc) that computes with memory linear in the tokens.
//
// Embeddings. The features of the table are divided among threads, so that every sum is taken in
// the order of the tokens.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/skinny_product.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

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

// The row of the table for token i.
int64_t TableRow(ConstFloatSpan ids, int64_t i) { return ids[i]; }

CADRE_VECTOR_LOOP void AddTo(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

// x[0, seen) becomes its softmax, x[seen, n) zero.
CADRE_VECTOR_LOOP void SoftmaxRow(int64_t seen, int64_t n, float* x) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < seen; ++i) largest = x[i] > largest ? x[i] : largest;
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < seen; ++i) {
    const float e = Exp(x[i] - largest);
    x[i] = e;
    total += e;
  }
  const float share = 1 / total;
  for (int64_t i = 0; i < seen; ++i) x[i] *= share;
  for (int64_t i = seen; i < n; ++i) x[i] = 0;
}

// Replaces dp, the gradient of the probabilities p, by the gradient of the scores times `scale`.
CADRE_VECTOR_LOOP void SoftmaxRowBackward(int64_t seen, int64_t n, float scale, const float* p,
                                          float* dp) {
  double product = 0;
#pragma omp simd reduction(+ : product)
  for (int64_t i = 0; i < seen; ++i) product += p[i] * dp[i];
  const float mean = product;
#pragma omp simd
  for (int64_t i = 0; i < seen; ++i) dp[i] = scale * p[i] * (dp[i] - mean);
  for (int64_t i = seen; i < n; ++i) dp[i] = 0;
}

// Offsets of a head's data in the arrays, and the distances between its tokens.
struct Head {
  Head(const AttentionDims& d, int64_t index)
      : qkv((index / d.heads * d.tokens * d.heads + index % d.heads) * 3 * d.head_features),
        qkv_stride(3 * d.heads * d.head_features),
        context((index / d.heads * d.tokens * d.heads + index % d.heads) * d.head_features),
        context_stride(d.heads * d.head_features),
        probabilities(index * d.tokens * d.tokens) {}

  int64_t qkv, qkv_stride, context, context_stride, probabilities;
};

float ScoreScale(const AttentionDims& d) {
  const float features = d.head_features;
  return 1.0F / std::sqrt(features);
}

int64_t Seen(const AttentionDims& d, int64_t token) { return d.causal ? token + 1 : d.tokens; }

// Cost of a head in elements, for dividing the work.
int64_t CostOfHead(const AttentionDims& d) {
  return d.tokens * d.tokens * (4 + d.head_features / 8);
}

void HeadForward(const AttentionDims& d, const Head& head, const float* qkv, float* probabilities,
                 float* context) {
  const int64_t t = d.tokens, f = d.head_features;
  const float* q = qkv + head.qkv;
  float* p = probabilities + head.probabilities;
  MatrixProduct(t, t, f, ScoreScale(d), {q, head.qkv_stride}, {q + f, head.qkv_stride, true}, p, t);
  for (int64_t i = 0; i < t; ++i) SoftmaxRow(Seen(d, i), t, p + i * t);
  MatrixProduct(t, f, t, 1, {p, t}, {q + 2 * f, head.qkv_stride}, context + head.context,
                head.context_stride);
}

// `dp`: scratch memory for the gradients of the scores.
void HeadBackward(const AttentionDims& d, const Head& head, const float* qkv,
                  const float* probabilities, const float* dcontext, float* dqkv, float* dp) {
  const int64_t t = d.tokens, f = d.head_features, stride = head.qkv_stride;
  const float* q = qkv + head.qkv;
  const float* p = probabilities + head.probabilities;
  const float* dc = dcontext + head.context;
  float* dq = dqkv + head.qkv;
  MatrixProduct(t, f, t, 1, {p, t, true}, {dc, head.context_stride}, dq + 2 * f, stride);
  MatrixProduct(t, t, f, 1, {dc, head.context_stride}, {q + 2 * f, stride, true}, dp, t);
  for (int64_t i = 0; i < t; ++i) {
    SoftmaxRowBackward(Seen(d, i), t, ScoreScale(d), p + i * t, dp + i * t);
  }
  MatrixProduct(t, f, t, 1, {dp, t}, {q + f, stride}, dq, stride);
  MatrixProduct(t, f, t, 1, {dp, t, true}, {q, stride}, dq + f, stride);
}

class CpuDense {
 public:
  explicit CpuDense(CpuContext& cpu) : cpu_(cpu) {}

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstFloatSpan x, ConstFloatSpan w,
                             ConstFloatSpan b, FloatSpan y) {
    const auto [batch, in, out] = dims;
    const ScopedThreads threads(cpu_.threads);
    // y^T = W x^T, transposed afterwards: in the form y = x W^T the product would repack all of W
    // instead of the much smaller x, and take twice as long.
    float* transposed = cpu_.workspace.Floats(0, y.size());
    if (!x.empty() && !y.empty() && TakesSkinnyProduct(dims)) {
      SkinnyForward(cpu_.threads, dims, x.data(), w.data(),
                    cpu_.workspace.Floats(1, SkinnyScratch(dims)), transposed);
    } else {
      MatrixProduct(out, batch, in, 1, {w.data(), in}, {x.data(), in, true}, transposed, batch);
    }
    TransposeAndAdd(batch, out, transposed, b.empty() ? nullptr : b.data(), y.data());
  }

  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstFloatSpan dy,
                                  ConstFloatSpan w, FloatSpan dx) {
    const auto [batch, in, out] = dims;
    const ScopedThreads threads(cpu_.threads);
    MatrixProduct(batch, in, out, 1, {dy.data(), out}, {w.data(), in}, dx.data(), in);
  }

  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstFloatSpan x,
                                     ConstFloatSpan dy, FloatSpan dw, FloatSpan db) {
    const auto [batch, in, out] = dims;
    const ScopedThreads threads(cpu_.threads);
    MatrixProduct(out, in, batch, 1, {dy.data(), out, true}, {x.data(), in}, dw.data(), in);
    if (!db.empty()) ColumnSums(cpu_.threads, batch, out, dy.data(), db);
  }

  void EmbeddingForward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan w,
                        ConstFloatSpan positions, FloatSpan y) {
    const int64_t n = dims.features;
    ForParts(cpu_.threads, std::ssize(ids), n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* to = y.data() + i * n;
        std::copy_n(w.data() + TableRow(ids, i) * n, n, to);
        if (positions.empty()) continue;
        AddTo(n, positions.data() + (dims.first_token + i % dims.tokens) * n, to);
      }
    });
  }

  void EmbeddingBackward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan dy,
                         FloatSpan dw, FloatSpan dpositions) {
    const int64_t n = dims.features;
    ForParts(cpu_.threads, std::ssize(dw), [&](int64_t begin, int64_t end) {
      std::fill(dw.begin() + begin, dw.begin() + end, 0.0F);
    });
    std::fill(dpositions.begin(), dpositions.end(), 0.0F);
    // The features are divided among threads, so that every sum is taken in the order of the
    // tokens.
    ForParts(cpu_.threads, n, std::ssize(ids), [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < std::ssize(ids); ++i) {
        const float* from = dy.data() + i * n + begin;
        AddTo(end - begin, from, dw.data() + TableRow(ids, i) * n + begin);
        if (dpositions.empty()) continue;
        const int64_t position = dims.first_token + i % dims.tokens;
        AddTo(end - begin, from, dpositions.data() + position * n + begin);
      }
    });
  }

  void AttentionForward(const AttentionDims& dims, ConstFloatSpan qkv, FloatSpan probabilities,
                        FloatSpan context) {
    if (qkv.empty()) {
      cpu_.reference->dense().AttentionForward(dims, qkv, probabilities, context);
      return;
    }
    // Products run in the calling thread, whether heads are divided among threads or not.
    const ScopedThreads one_thread(1);
    ForParts(cpu_.threads, dims.batch * dims.heads, CostOfHead(dims),
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 HeadForward(dims, Head(dims, i), qkv.data(), probabilities.data(), context.data());
               }
             });
  }

  void AttentionBackward(const AttentionDims& dims, ConstFloatSpan qkv,
                         ConstFloatSpan probabilities, ConstFloatSpan dcontext, FloatSpan dqkv) {
    if (qkv.empty()) return;
    const ScopedThreads one_thread(1);
    ForParts(cpu_.threads, dims.batch * dims.heads, CostOfHead(dims),
             [&](int64_t begin, int64_t end) {
               std::vector<float> dp(dims.tokens * dims.tokens);
               for (int64_t i = begin; i < end; ++i) {
                 HeadBackward(dims, Head(dims, i), qkv.data(), probabilities.data(),
                              dcontext.data(), dqkv.data(), dp.data());
               }
             });
  }

 private:
  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<DenseKernels> MakeCpuDense(CpuContext& cpu) {
  return std::make_unique<HostDense<SpanCaller<CpuDense>>>(cpu);
}

}  // namespace cadre
