// Multi-head attention (Vaswani et al. 2017) with the probabilities kept for backward.
//
// A head of a sample is processed at a time: scores = q k^T, softmax row by row, context = p v. Its
// [tokens, tokens] scores stay in the second-level cache between the two products, so that main
// memory is read and written once. Backward recomputes nothing: with dp = dcontext v^T, the
// gradient of the scores is p * (dp - sum(p * dp)), and three more products give dq, dk and dv.
//
// q, k and v of a token are interleaved in one array; oneDNN's matrix product takes row strides, so
// none is copied. Heads are divided among threads if there are enough of them, otherwise threads
// share each product. Sums have one order per number of threads.
//
// Limit: memory is quadratic in the tokens, because the probabilities are an output. The CUDA back
// end has a fused form (cudnn_plan.cc) that is not.
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

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
    total += static_cast<double>(e);
  }
  const auto share = static_cast<float>(1 / total);
  for (int64_t i = 0; i < seen; ++i) x[i] *= share;
  for (int64_t i = seen; i < n; ++i) x[i] = 0;
}

// dp, the gradient of probabilities p, becomes that of their scores, times `scale`.
CADRE_VECTOR_LOOP void SoftmaxRowBackward(int64_t seen, int64_t n, float scale, const float* p,
                                          float* dp) {
  double product = 0;
#pragma omp simd reduction(+ : product)
  for (int64_t i = 0; i < seen; ++i) product += static_cast<double>(p[i] * dp[i]);
  const auto mean = static_cast<float>(product);
#pragma omp simd
  for (int64_t i = 0; i < seen; ++i) dp[i] = scale * p[i] * (dp[i] - mean);
  for (int64_t i = seen; i < n; ++i) dp[i] = 0;
}

// Where a head's numbers start, and how far apart its tokens are.
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
  return 1.0F / std::sqrt(static_cast<float>(d.head_features));
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

}  // namespace

void CpuDense::AttentionForward(const AttentionDims& dims, ConstValues qkv_values,
                                Values probabilities_values, Values context_values) {
  const auto qkv = qkv_values.floats();
  const auto probabilities = probabilities_values.floats(), context = context_values.floats();
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("context", context.size(), sizes.context);
  if (sizes.context == 0) {
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

void CpuDense::AttentionBackward(const AttentionDims& dims, ConstValues qkv_values,
                                 ConstValues probabilities_values, ConstValues dcontext_values,
                                 Values dqkv_values) {
  const auto qkv = qkv_values.floats(), probabilities = probabilities_values.floats(),
             dcontext = dcontext_values.floats();
  const auto dqkv = dqkv_values.floats();
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("dcontext", dcontext.size(), sizes.context);
  CheckSize("dqkv", dqkv.size(), sizes.qkv);
  if (sizes.context == 0) return;
  const ScopedThreads one_thread(1);
  ForParts(cpu_.threads, dims.batch * dims.heads, CostOfHead(dims),
           [&](int64_t begin, int64_t end) {
             std::vector<float> dp(dims.tokens * dims.tokens);
             for (int64_t i = begin; i < end; ++i) {
               HeadBackward(dims, Head(dims, i), qkv.data(), probabilities.data(), dcontext.data(),
                            dqkv.data(), dp.data());
             }
           });
}

}  // namespace cadre
