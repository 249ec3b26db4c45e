// Attention: the library's fused form (dense_math.h), or products by the library with our softmax.
//
// The fused form and ours both save one fp32 statistic per query and recompute the
// probabilities in backward, so that saved memory is linear in the tokens. Ours works on blocks of
// scores in the caller's scratch memory, or of at most kMaxScores elements in the back end's, which
// remain in the second-level cache of large GPUs: whole heads of as many samples as fit, or rows of
// one head. A strided batched product computes the scores in fp32 (rounding scores to bf16 would
// cause larger errors in their exponentials than rounding the factors does); softmax uses one warp
// per row and sums in fp32. Backward computes a block's scores again and applies the gradient of
// softmax, p * (dp - dcontext . context), between its products. If a head needs several blocks, the
// gradient of queries is computed by blocks of queries, and those of keys and values by blocks of
// keys, so that no sum is divided among products; the scores are then computed twice. Blocks of
// rows of causal attention leave out the products above the diagonal; blocks of whole heads do not.
// Only our form has masks of padding, which may be at any tokens: the softmax leaves out the hidden
// keys.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>

#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/elements.h"
#include "kernels/extents.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// Elements of a block in the back end's own scratch memory.
constexpr int64_t kMaxScores = int64_t{1} << 22;

// The scores of some heads (of samples * heads) between some queries and keys: [heads, queries,
// keys] in scratch memory. Several heads are heads of one sample, or all heads of whole samples.
struct ScoreBlock {
  Interval heads, queries, keys;

  int64_t rows() const { return heads.size() * queries.size(); }
  int64_t elements() const { return rows() * keys.size(); }
};

// A row of a block: the index of its statistic, its query, and how many of the block's keys it
// attends to.
struct ScoreRow {
  __device__ ScoreRow(const AttentionDims& dims, const ScoreBlock& block, int64_t row) {
    int64_t index;
    head = block.heads.begin + Divide(row, block.queries.end - block.queries.begin, &index);
    query = block.queries.begin + index;
    statistic = head * dims.tokens + query;
    const int64_t keys = block.keys.end - block.keys.begin;
    seen = dims.causal ? query + 1 - block.keys.begin : keys;
    seen = seen < 0 ? 0 : seen > keys ? keys : seen;
  }

  int64_t head, query, statistic, seen;
};

// The keys of a block that padding hides from a query. A warp makes it together.
struct KeyMask {
  // `all_ids`: [batch, tokens]; not read without a padding token.
  __device__ KeyMask(const AttentionDims& dims, const ScoreBlock& block, const float* all_ids,
                     int64_t sample)
      : padding(dims.padding_token) {
    if (dims.padding_token == AttentionDims::kNoPadding) return;
    const float* const of_sample = all_ids + sample * dims.tokens;
    float other = 0;
    for (int64_t t = threadIdx.x % 32; t < dims.tokens; t += 32) {
      if (of_sample[t] != padding) other = 1;
    }
    // A sample of padding alone has no mask.
    if (OverWarp(other, Larger()) > 0) ids = of_sample + block.keys.begin;
  }
  __device__ bool Hides(int64_t key) const { return ids != nullptr && ids[key] == padding; }

  const float* ids = nullptr;
  float padding;
};

// Requires: the block has all keys that its queries attend to. `probabilities` may be `scores`.
template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRows(AttentionDims dims, ScoreBlock block, const float* __restrict__ ids,
                const float* scores, T* probabilities, float* __restrict__ statistics) {
  const int lane = threadIdx.x % 32;
  const int64_t keys = block.keys.end - block.keys.begin;
  const int64_t rows =
      (block.heads.end - block.heads.begin) * (block.queries.end - block.queries.begin);
  for (int64_t i = ThreadIndex() / 32; i < rows; i += ThreadCount() / 32) {
    const ScoreRow row(dims, block, i);
    int64_t head;
    const KeyMask mask(dims, block, ids, Divide(row.head, dims.heads, &head));
    const float* const from = scores + i * keys;
    T* const to = probabilities + i * keys;
    float largest = -INFINITY;
    for (int64_t s = lane; s < row.seen; s += 32) {
      if (!mask.Hides(s)) largest = Larger()(largest, from[s]);
    }
    largest = OverWarp(largest, Larger());
    float total = 0;
    for (int64_t s = lane; s < row.seen; s += 32) {
      if (!mask.Hides(s)) total += expf(from[s] - largest);
    }
    total = OverWarp(total, Plus());
    for (int64_t s = lane; s < keys; s += 32) {
      const bool attends = s < row.seen && !mask.Hides(s);
      FromFloat(attends ? expf(from[s] - largest) / total : 0.0F, to + s);
    }
    if (lane == 0) statistics[row.statistic] = total == 0 ? 0 : largest + logf(total);
  }
}

// Probabilities from scores, and the gradients of the scores times `scale` from those of the
// probabilities. `probabilities` may be `scores`, and `dscores` may be `dprobabilities`.
template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRowsBackward(AttentionDims dims, ScoreBlock block, float scale,
                        const float* __restrict__ ids, const T* __restrict__ context,
                        const T* __restrict__ dcontext, const float* __restrict__ statistics,
                        const float* scores, const float* dprobabilities, T* probabilities,
                        T* dscores) {
  const int lane = threadIdx.x % 32;
  const int64_t keys = block.keys.end - block.keys.begin;
  const int64_t rows =
      (block.heads.end - block.heads.begin) * (block.queries.end - block.queries.begin);
  for (int64_t i = ThreadIndex() / 32; i < rows; i += ThreadCount() / 32) {
    const ScoreRow row(dims, block, i);
    int64_t head;
    const int64_t sample = Divide(row.head, dims.heads, &head);
    const KeyMask mask(dims, block, ids, sample);
    const int64_t at =
        ((sample * dims.tokens + row.query) * dims.heads + head) * dims.head_features;
    float weighted = 0;
    for (int64_t f = lane; f < dims.head_features; f += 32) {
      weighted += ToFloat(context[at + f]) * ToFloat(dcontext[at + f]);
    }
    weighted = OverWarp(weighted, Plus());
    const float statistic = statistics[row.statistic];
    for (int64_t s = lane; s < keys; s += 32) {
      const int64_t element = i * keys + s;
      const bool attends = s < row.seen && !mask.Hides(s);
      const float p = attends ? expf(scores[element] - statistic) : 0.0F;
      const float ds = attends ? p * (dprobabilities[element] - weighted) * scale : 0.0F;
      FromFloat(p, probabilities + element);
      FromFloat(ds, dscores + element);
    }
  }
}

bool Empty(const AttentionDims& d) {
  return d.batch == 0 || d.tokens == 0 || d.heads == 0 || d.head_features == 0;
}

// PartOf: qkv from the first token's queries, keys or values on.
enum Part : int64_t { kQuery, kKey, kValue };

template <typename V>
V PartOf(const AttentionDims& d, V qkv, Part part) {
  return qkv.subspan(part * d.head_features);
}

// Distances in elements between rows (tokens), heads (`step`) and samples (`outer`) of the matrices
// in qkv (its parts), in the context, and in the scores.
struct Strides {
  int64_t row = 0, step = 0, outer = 0;
};

Strides PartStrides(const AttentionDims& d) {
  const int64_t row = d.heads * 3 * d.head_features;
  return {.row = row, .step = 3 * d.head_features, .outer = d.tokens * row};
}

Strides ContextStrides(const AttentionDims& d) {
  const int64_t row = d.heads * d.head_features;
  return {.row = row, .step = d.head_features, .outer = d.tokens * row};
}

Strides ScoreStrides(const AttentionDims& d, const ScoreBlock& block) {
  const int64_t keys = block.keys.size(), head = block.queries.size() * keys;
  return {.row = keys, .step = head, .outer = d.heads * head};
}

// The values from the first row of a block on: `token` of the block's first head.
template <typename V>
V RowsFrom(const AttentionDims& d, V values, const Strides& strides, int64_t head, int64_t token) {
  return values.subspan(head / d.heads * strides.outer + head % d.heads * strides.step +
                        token * strides.row);
}

// c[m, n] = a[m, k] b[k, n], one product for each head of the block.
MatrixProductDims ProductOf(const AttentionDims& d, const ScoreBlock& block, int64_t m, int64_t n,
                            int64_t k, const Strides& a, const Strides& b, const Strides& c) {
  const bool within_sample = block.heads.size() < d.heads;
  return {.m = m,
          .n = n,
          .k = k,
          .a_row = a.row,
          .b_row = b.row,
          .c_row = c.row,
          .batch = within_sample ? block.heads.size() : d.heads,
          .a_step = a.step,
          .b_step = b.step,
          .c_step = c.step,
          .outer = within_sample ? 1 : block.heads.size() / d.heads,
          .a_outer = a.outer,
          .b_outer = b.outer,
          .c_outer = c.outer};
}

// Calls f(heads, tokens) for parts of all heads and of their tokens, such that the scores between
// these tokens and all tokens are at most `max_scores` elements. Requires: these are at least one
// row.
template <typename F>
void ForEachScoreBlock(const AttentionDims& d, int64_t max_scores, F f) {
  const int64_t of_head = d.tokens * d.tokens, all = d.batch * d.heads;
  const int64_t rows = std::min(max_scores / d.tokens, d.tokens);
  int64_t heads = std::max<int64_t>(1, max_scores / of_head);
  if (heads > d.heads) heads -= heads % d.heads;
  for (int64_t head = 0; head < all;) {
    const int64_t sample_end = (head / d.heads + 1) * d.heads;
    const int64_t end = std::min(head + heads, heads < d.heads ? sample_end : all);
    for (int64_t row = 0; row < d.tokens; row += rows) {
      f(Interval{head, end}, Interval{row, std::min(row + rows, d.tokens)});
    }
    head = end;
  }
}

float ScoreScale(const AttentionDims& d) {
  const double features = std::max<int64_t>(1, d.head_features);
  return 1 / std::sqrt(features);
}

// Whether the fused form exists and can store the statistics, which it writes by whole vectors. It
// has no mask for padding at any tokens.
bool Fuses(DenseMath& math, const AttentionDims& dims, ConstValues qkv, ConstFloatSpan statistics) {
  return dims.padding_token == AttentionDims::kNoPadding && Aligned({statistics.data()}) &&
         math.HasFusedAttention(dims, qkv.type());
}

// Tensors of one call of AttentionBackward.
struct AttentionTensors {
  ConstFloatSpan ids;
  ConstValues qkv, context, dcontext;
  ConstFloatSpan statistics;
};

// The form without the library's fused kernels, for one call.
class BlockedAttention {
 public:
  // `scratch`: of the caller; the back end's own is used if that has no room for a row of scores.
  BlockedAttention(CudaContext& cuda, const AttentionDims& dims, Values scratch)
      : cuda_(cuda),
        dims_(dims),
        scratch_(static_cast<float*>(scratch.data()), scratch.bytes() / sizeof(float)) {}

  void Forward(ConstFloatSpan ids, ConstValues qkv, Values context, FloatSpan statistics);
  void Backward(const AttentionTensors& tensors, Values dqkv);

 private:
  // Both [heads, queries, keys] of a block, in scratch memory; empty after an error.
  struct Gradients {
    Values probabilities, dscores;
  };

  // Memory of `count` scores: fp32 values, which results replace if these are fp32.
  static int64_t ForwardFloats(DType type, int64_t count) {
    return type == DType::kFloat32 ? count : count + (count + 1) / 2;
  }
  static int64_t BackwardFloats(DType type, int64_t count) {
    return (type == DType::kFloat32 ? 2 : 3) * count;
  }
  // The caller's memory if it has so many, else the back end's; empty after an error.
  FloatSpan Take(int64_t floats) {
    return floats <= std::ssize(scratch_) ? scratch_.first(floats)
                                          : cuda_.scratch.Take<float>(floats);
  }
  // The maximum number of scores in a block, if the caller's memory has room for `in_scratch`.
  int64_t MaxScores(int64_t in_scratch) const {
    return in_scratch >= dims_.tokens ? in_scratch : std::max(kMaxScores, dims_.tokens);
  }

  // scores = q k^T / sqrt(features).
  void Scores(const ScoreBlock& block, ConstValues qkv, FloatSpan scores) {
    const Strides of_parts = PartStrides(dims_);
    MatrixProductDims product =
        ProductOf(dims_, block, block.queries.size(), block.keys.size(), dims_.head_features,
                  of_parts, of_parts, ScoreStrides(dims_, block));
    product.transpose_b = true;
    product.alpha = ScoreScale(dims_);
    const int64_t head = block.heads.begin;
    cuda_.math->MatrixProduct(
        product, RowsFrom(dims_, PartOf(dims_, qkv, kQuery), of_parts, head, block.queries.begin),
        RowsFrom(dims_, PartOf(dims_, qkv, kKey), of_parts, head, block.keys.begin), {}, scores);
  }

  Gradients ScoreGradients(const ScoreBlock& block, const AttentionTensors& tensors) {
    const DType type = tensors.qkv.type();
    const bool is_fp32 = type == DType::kFloat32;
    const int64_t count = block.elements();
    const FloatSpan scratch = Take(BackwardFloats(type, count));
    if (scratch.empty()) return {};
    const FloatSpan scores = scratch.first(count), dprobabilities = scratch.subspan(count, count);
    const Values results(is_fp32 ? scratch.data() : scratch.data() + 2 * count, 2 * count, type);
    Scores(block, tensors.qkv, scores);
    const Strides of_parts = PartStrides(dims_), of_context = ContextStrides(dims_);
    MatrixProductDims product =
        ProductOf(dims_, block, block.queries.size(), block.keys.size(), dims_.head_features,
                  of_context, of_parts, ScoreStrides(dims_, block));
    product.transpose_b = true;
    const int64_t head = block.heads.begin;
    cuda_.math->MatrixProduct(
        product, RowsFrom(dims_, tensors.dcontext, of_context, head, block.queries.begin),
        RowsFrom(dims_, PartOf(dims_, tensors.qkv, kValue), of_parts, head, block.keys.begin), {},
        dprobabilities);
    const Gradients gradients{results.first(count), results.subspan(count)};
    ByType(type, [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "softmax gradient of attention", SoftmaxRowsBackward<T>,
             WarpPerRow(cuda_.device, block.rows()), dims_, block, ScoreScale(dims_),
             tensors.ids.data(), Data<T>(tensors.context), Data<T>(tensors.dcontext),
             tensors.statistics.data(), scores.data(), dprobabilities.data(),
             Data<T>(gradients.probabilities), Data<T>(gradients.dscores));
    });
    return gradients;
  }

  // dq = dscores k.
  void QueryGradient(const ScoreBlock& block, const Gradients& gradients, ConstValues qkv,
                     Values dqkv) {
    if (gradients.dscores.empty()) return;
    const Strides of_parts = PartStrides(dims_);
    const int64_t head = block.heads.begin;
    cuda_.math->MatrixProduct(
        ProductOf(dims_, block, block.queries.size(), dims_.head_features, block.keys.size(),
                  ScoreStrides(dims_, block), of_parts, of_parts),
        gradients.dscores,
        RowsFrom(dims_, PartOf(dims_, qkv, kKey), of_parts, head, block.keys.begin), {},
        RowsFrom(dims_, PartOf(dims_, dqkv, kQuery), of_parts, head, block.queries.begin));
  }

  // dk = dscores^T q, dv = probabilities^T dcontext.
  void KeyAndValueGradients(const ScoreBlock& block, const Gradients& gradients, ConstValues qkv,
                            ConstValues dcontext, Values dqkv) {
    if (gradients.dscores.empty()) return;
    const Strides of_parts = PartStrides(dims_), of_context = ContextStrides(dims_);
    const int64_t head = block.heads.begin;
    MatrixProductDims product =
        ProductOf(dims_, block, block.keys.size(), dims_.head_features, block.queries.size(),
                  ScoreStrides(dims_, block), of_parts, of_parts);
    product.transpose_a = true;
    cuda_.math->MatrixProduct(
        product, gradients.dscores,
        RowsFrom(dims_, PartOf(dims_, qkv, kQuery), of_parts, head, block.queries.begin), {},
        RowsFrom(dims_, PartOf(dims_, dqkv, kKey), of_parts, head, block.keys.begin));
    product = ProductOf(dims_, block, block.keys.size(), dims_.head_features, block.queries.size(),
                        ScoreStrides(dims_, block), of_context, of_parts);
    product.transpose_a = true;
    cuda_.math->MatrixProduct(
        product, gradients.probabilities,
        RowsFrom(dims_, dcontext, of_context, head, block.queries.begin), {},
        RowsFrom(dims_, PartOf(dims_, dqkv, kValue), of_parts, head, block.keys.begin));
  }

  CudaContext& cuda_;
  const AttentionDims dims_;
  const FloatSpan scratch_;
};

void BlockedAttention::Forward(ConstFloatSpan ids, ConstValues qkv, Values context,
                               FloatSpan statistics) {
  const DType type = qkv.type();
  const int64_t max_scores =
      MaxScores(type == DType::kFloat32 ? std::ssize(scratch_) : 2 * std::ssize(scratch_) / 3);
  ForEachScoreBlock(dims_, max_scores, [&](const Interval& heads, const Interval& queries) {
    const ScoreBlock block{
        .heads = heads,
        .queries = queries,
        .keys = {0, dims_.causal ? queries.end : dims_.tokens},
    };
    const int64_t count = block.elements();
    const FloatSpan scratch = Take(ForwardFloats(type, count));
    if (scratch.empty()) return;
    const FloatSpan scores = scratch.first(count);
    const Values probabilities(scores.data() + (type == DType::kFloat32 ? 0 : count), count, type);
    Scores(block, qkv, scores);
    ByType(type, [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "softmax of attention", SoftmaxRows<T>,
             WarpPerRow(cuda_.device, block.rows()), dims_, block, ids.data(), scores.data(),
             Data<T>(probabilities), statistics.data());
    });
    const Strides of_parts = PartStrides(dims_), of_context = ContextStrides(dims_);
    cuda_.math->MatrixProduct(
        ProductOf(dims_, block, queries.size(), dims_.head_features, block.keys.size(),
                  ScoreStrides(dims_, block), of_parts, of_context),
        probabilities, RowsFrom(dims_, PartOf(dims_, qkv, kValue), of_parts, heads.begin, 0), {},
        RowsFrom(dims_, context, of_context, heads.begin, queries.begin));
  });
}

void BlockedAttention::Backward(const AttentionTensors& tensors, Values dqkv) {
  const ConstValues qkv = tensors.qkv;
  const int64_t max_scores = MaxScores(std::ssize(scratch_) / BackwardFloats(qkv.type(), 1));
  ForEachScoreBlock(dims_, max_scores, [&](const Interval& heads, const Interval& tokens) {
    const Interval all{0, dims_.tokens};
    if (tokens == all) {
      const ScoreBlock block{heads, all, all};
      const Gradients gradients = ScoreGradients(block, tensors);
      QueryGradient(block, gradients, qkv, dqkv);
      return KeyAndValueGradients(block, gradients, qkv, tensors.dcontext, dqkv);
    }
    const ScoreBlock by_queries{heads, tokens, {0, dims_.causal ? tokens.end : dims_.tokens}};
    QueryGradient(by_queries, ScoreGradients(by_queries, tensors), qkv, dqkv);
    const ScoreBlock by_keys{heads, {dims_.causal ? tokens.begin : 0, dims_.tokens}, tokens};
    KeyAndValueGradients(by_keys, ScoreGradients(by_keys, tensors), qkv, tensors.dcontext, dqkv);
  });
}

}  // namespace

void CudaAttentionForward(CudaContext& cuda, const AttentionDims& dims, ConstFloatSpan ids,
                          ConstValues qkv, Values context, FloatSpan statistics, Values scratch) {
  if (Empty(dims)) return cuda.Zero(statistics);
  if (Fuses(*cuda.math, dims, qkv, statistics)) {
    return cuda.math->FusedAttentionForward(dims, qkv, context, statistics);
  }
  BlockedAttention(cuda, dims, scratch).Forward(ids, qkv, context, statistics);
}

void CudaAttentionBackward(CudaContext& cuda, const AttentionDims& dims, ConstFloatSpan ids,
                           ConstValues qkv, ConstValues context, ConstValues dcontext,
                           ConstFloatSpan statistics, Values scratch, Values dqkv) {
  if (Empty(dims)) return;
  if (Fuses(*cuda.math, dims, qkv, statistics)) {
    return cuda.math->FusedAttentionBackward(dims, qkv, context, dcontext, statistics, scratch,
                                             dqkv);
  }
  BlockedAttention(cuda, dims, scratch).Backward({ids, qkv, context, dcontext, statistics}, dqkv);
}

}  // namespace cadre
