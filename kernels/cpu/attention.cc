// Multi-head attention (Vaswani et al. 2017) by tiles, without a [tokens, tokens] matrix in memory.
//
// The method is FlashAttention (Dao et al., NeurIPS 2022), whose sums over keys are those of
// Milakov and Gimelshein's online softmax (2018).
//
// Forward. A tile of queries passes over the tiles of keys. For each, scores s = q k^T are computed
// into a buffer that stays in the second-level cache. For every query the largest score so far m,
// the sum l of exp(s - m) and the context, the sum of exp(s - m) v, are kept; when a tile of keys
// raises m, l and the context are first multiplied by exp(old m - new m). After the last tile the
// context is divided by l, and the statistic m + log(l) is all that backward needs in order to
// recompute a probability: p = exp(s - statistic).
//
// Backward. With dp = dcontext v^T, the gradient of the scores is p * (dp - sum(p * dp)). The sum
// over a row is the product of dcontext and context, since sum(p * dp) = sum(p * v) . dcontext; so
// a tile's gradients depend on no other tile. A tile of keys passes over the tiles of queries; dk
// and dv are complete after the pass, and dq is summed over the passes in the order of the keys.
//
// Causal attention skips the tiles above the diagonal: half of the work for long sequences. In the
// tiles on the diagonal, masked probabilities are set to zero.
//
// Padding. The scores of keys that are padding are set to minus infinity, so that their
// probabilities are zero, and tiles of such keys alone are skipped. Running maxima begin with a
// finite number, so that this also holds for queries without other keys; their sum l is zero, and
// their context is set to zero. A sample of padding alone has no mask.
//
// Cost: two products forward and five backward (one more than with stored probabilities). A head's
// queries, keys and values are interleaved with those of other heads, each token on another page of
// memory for wide layers; they are copied to contiguous memory once, because a tile reads them once
// for each tile of the other kind.
//
// The order of every sum depends on the extents only, so that results do not depend on the division
// of heads among ranks or of work among threads.
//
// Memory: the buffers of each thread, linear in the tokens: a head's copies of its inputs and
// gradients (8 * tokens * head_features floats in backward) and two tiles of scores.
//
// Limits: forward divides heads and tiles of queries among threads, backward whole heads, so that
// threads beyond samples * heads are idle in backward.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// Queries and keys of a tile. The tiles of backward fit in a second-level cache of 256 KiB. With
// 128, products are not faster, and causal attention computes more of what the mask hides.
constexpr int64_t kTile = 64;

// Scores x[0, seen) of one query become exp(x - m), and x[seen, n) zero. m and l are the query's
// running maximum and sum, and context[features] its running context.
CADRE_VECTOR_LOOP void AddScores(int64_t seen, int64_t n, int64_t features, float* __restrict x,
                                 float* __restrict context, float* m, double* l) {
  float largest = *m;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < seen; ++i) largest = x[i] > largest ? x[i] : largest;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < seen; ++i) {
    const float e = Exp(x[i] - largest);
    x[i] = e;
    total += e;
  }
  for (int64_t i = seen; i < n; ++i) x[i] = 0;
  if (largest > *m) {
    const float shrunk = Exp(*m - largest);
    for (int64_t i = 0; i < features; ++i) context[i] *= shrunk;
    *l *= shrunk;
    *m = largest;
  }
  *l += total;
}

// The scores of keys whose id is `padding` become minus infinity.
CADRE_VECTOR_LOOP void HideScores(int64_t n, const float* __restrict ids, float padding,
                                  float* __restrict x) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) x[i] = ids[i] == padding ? kHidden : x[i];
}

template <typename T>
CADRE_VECTOR_LOOP void Scale(int64_t n, float factor, const float* __restrict x, T* __restrict y) {
  for (int64_t i = 0; i < n; ++i) Store(y + i, x[i] * factor);
}

// Scores s[0, seen) of one query become probabilities, and dp, the gradient of the probabilities,
// becomes the gradient of the scores times `scale`; both become zero in [seen, n). `weighted`: the
// sum of p * dp over all keys.
CADRE_VECTOR_LOOP void ScoreGradients(int64_t seen, int64_t n, float scale, float statistic,
                                      float weighted, float* __restrict s, float* __restrict dp) {
#pragma omp simd
  for (int64_t i = 0; i < seen; ++i) {
    const float p = Exp(s[i] - statistic);
    s[i] = p;
    dp[i] = scale * p * (dp[i] - weighted);
  }
  for (int64_t i = seen; i < n; ++i) s[i] = dp[i] = 0;
}

template <typename T>
CADRE_VECTOR_LOOP float Dot(int64_t n, const float* x, const T* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * Load<float>(y + i);
  return sum;
}

template <typename From, typename To>
CADRE_VECTOR_LOOP void CopyRows(int64_t rows, int64_t features, const From* from,
                                int64_t from_stride, To* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i, from += from_stride, to += to_stride) {
    for (int64_t c = 0; c < features; ++c) Store(to + c, Load<float>(from + c));
  }
}

// Rows as a factor of a product in fp32: the rows themselves, or a copy of them in `copy`.
MatrixView Rows(int64_t /*rows*/, int64_t /*features*/, const float* from, int64_t stride,
                float* /*copy*/) {
  return {from, stride};
}
MatrixView Rows(int64_t rows, int64_t features, const Bf16* from, int64_t stride, float* copy) {
  CopyRows(rows, features, from, stride, copy, features);
  return {copy, features};
}

MatrixView Transposed(const MatrixView& view) { return {view.data, view.stride, true}; }

// Where a head's data are in the arrays, and which keys are padding.
struct Head {
  Head(const AttentionDims& d, ConstFloatSpan all_ids, int64_t index)
      : qkv((index / d.heads * d.tokens * d.heads + index % d.heads) * 3 * d.head_features),
        context((index / d.heads * d.tokens * d.heads + index % d.heads) * d.head_features),
        statistics(index * d.tokens),
        padding(d.padding_token) {
    if (all_ids.empty()) return;
    const ConstFloatSpan here = all_ids.subspan(index / d.heads * d.tokens, d.tokens);
    const int64_t hidden = std::count(here.begin(), here.end(), padding);
    if (hidden > 0 && hidden < d.tokens) ids = here;
  }

  bool HidesAll(const Interval& keys) const {
    const ConstFloatSpan here = IdsOf(keys);
    return masks() && std::count(here.begin(), here.end(), padding) == keys.size();
  }
  // `scores`: of `queries` queries, [queries, keys].
  void HideKeys(int64_t queries, const Interval& keys, float* scores) const {
    if (!masks()) return;
    for (int64_t i = 0; i < queries; ++i) {
      HideScores(keys.size(), IdsOf(keys).data(), padding, scores + i * keys.size());
    }
  }
  bool masks() const { return !ids.empty(); }

  int64_t qkv, context, statistics;

 private:
  ConstFloatSpan IdsOf(const Interval& keys) const {
    return masks() ? ids.subspan(keys.begin, keys.size()) : ids;
  }

  // Of the sample's tokens; empty if no key is hidden.
  ConstFloatSpan ids;
  float padding;
};

int64_t QkvStride(const AttentionDims& d) { return 3 * d.heads * d.head_features; }
int64_t ContextStride(const AttentionDims& d) { return d.heads * d.head_features; }

float ScoreScale(const AttentionDims& d) {
  const float features = d.head_features;
  return 1.0F / std::sqrt(features);
}

int64_t Tiles(const AttentionDims& d) { return (d.tokens + kTile - 1) / kTile; }

// Tokens of a tile.
Interval TileAt(const AttentionDims& d, int64_t index) {
  return {index * kTile, std::min(d.tokens, (index + 1) * kTile)};
}

// How many of the keys a query attends to.
int64_t Seen(const AttentionDims& d, int64_t query, const Interval& keys) {
  return d.causal ? std::clamp<int64_t>(query + 1 - keys.begin, 0, keys.size()) : keys.size();
}

// Elements of a tile's work, for dividing it.
int64_t CostOfTile(const AttentionDims& d) {
  return std::min(d.tokens, kTile) * d.tokens * (4 + d.head_features / 8);
}

int64_t TileElements(const AttentionDims& d) {
  const int64_t side = std::min(d.tokens, kTile);
  return side * side;
}

int64_t HeadElements(const AttentionDims& d) { return d.tokens * d.head_features; }

// Elements of a tile's rows.
int64_t TileRowElements(const AttentionDims& d) {
  return std::min(d.tokens, kTile) * d.head_features;
}

// One tile of queries of one head. `scratch`: the tile's scores and context, and copies of the
// tile's queries and of a tile of keys or values.
template <typename T>
void ForwardTile(const AttentionDims& d, const Head& head, const Interval& queries, const T* qkv,
                 float* scratch, T* context, float* statistics) {
  const int64_t f = d.head_features, stride = QkvStride(d);
  const T* const q = qkv + head.qkv;
  float* const scores = scratch;
  float* const sum = scores + TileElements(d);
  float* const q_copy = sum + TileRowElements(d);
  float* const copy = q_copy + TileRowElements(d);
  const MatrixView q_rows = Rows(queries.size(), f, q + queries.begin * stride, stride, q_copy);
  float m[kTile];
  double l[kTile] = {};
  std::fill_n(m, queries.size(), std::numeric_limits<float>::lowest());
  std::fill_n(sum, queries.size() * f, 0.0F);
  for (int64_t tile = 0; tile < Tiles(d); ++tile) {
    const Interval keys = TileAt(d, tile);
    if (d.causal && keys.begin >= queries.end) break;
    if (head.HidesAll(keys)) continue;
    const T* const k = q + f + keys.begin * stride;
    MatrixProduct(queries.size(), keys.size(), f, ScoreScale(d), q_rows,
                  Transposed(Rows(keys.size(), f, k, stride, copy)), scores, keys.size());
    head.HideKeys(queries.size(), keys, scores);
    for (int64_t i = 0; i < queries.size(); ++i) {
      AddScores(Seen(d, queries.begin + i, keys), keys.size(), f, scores + i * keys.size(),
                sum + i * f, m + i, l + i);
    }
    AddMatrixProduct(queries.size(), f, keys.size(), 1, {scores, keys.size()},
                     Rows(keys.size(), f, k + f, stride, copy), sum, f);
  }
  for (int64_t i = 0; i < queries.size(); ++i) {
    const int64_t token = queries.begin + i;
    const bool attends = !head.masks() || l[i] > 0;
    Scale(f, attends ? 1 / l[i] : 0, sum + i * f,
          context + head.context + token * ContextStride(d));
    statistics[head.statistics + token] = attends ? m[i] + std::log(l[i]) : 0;
  }
}

// One head. `scratch`: the copies of its inputs, its gradients, and two tiles of scores.
template <typename T>
void BackwardHead(const AttentionDims& d, const Head& head, const T* qkv, const T* context,
                  const T* dcontext, const float* statistics, float* scratch, T* dqkv) {
  const int64_t f = d.head_features;
  const auto take = [&scratch](int64_t elements) {
    float* const taken = scratch;
    scratch += elements;
    return taken;
  };
  float* const qkv_copies = take(3 * HeadElements(d));
  float* const dc = take(HeadElements(d));
  float* const dqkv_sums = take(3 * HeadElements(d));
  float* const weighted = take(d.tokens);
  float* const scores = take(TileElements(d));
  float* const dscores = take(TileElements(d));
  for (int part = 0; part < 3; ++part) {
    CopyRows(d.tokens, f, qkv + head.qkv + part * f, QkvStride(d),
             qkv_copies + part * HeadElements(d), f);
  }
  CopyRows(d.tokens, f, dcontext + head.context, ContextStride(d), dc, f);
  for (int64_t t = 0; t < d.tokens; ++t) {
    weighted[t] = Dot(f, dc + t * f, context + head.context + t * ContextStride(d));
  }
  std::fill_n(dqkv_sums, 3 * HeadElements(d), 0.0F);
  const float* const q = qkv_copies;
  const float* const k = q + HeadElements(d);
  const float* const v = k + HeadElements(d);
  float* const dq = dqkv_sums;
  float* const dk = dq + HeadElements(d);
  float* const dv = dk + HeadElements(d);
  for (int64_t key_tile = 0; key_tile < Tiles(d); ++key_tile) {
    const Interval keys = TileAt(d, key_tile);
    if (head.HidesAll(keys)) continue;
    const int64_t n = keys.size();
    for (int64_t tile = d.causal ? key_tile : 0; tile < Tiles(d); ++tile) {
      const Interval queries = TileAt(d, tile);
      const int64_t m = queries.size(), from = queries.begin;
      MatrixProduct(m, n, f, ScoreScale(d), {q + from * f, f}, {k + keys.begin * f, f, true},
                    scores, n);
      head.HideKeys(m, keys, scores);
      MatrixProduct(m, n, f, 1, {dc + from * f, f}, {v + keys.begin * f, f, true}, dscores, n);
      for (int64_t i = 0; i < m; ++i) {
        ScoreGradients(Seen(d, from + i, keys), n, ScoreScale(d),
                       statistics[head.statistics + from + i], weighted[from + i], scores + i * n,
                       dscores + i * n);
      }
      AddMatrixProduct(n, f, m, 1, {scores, n, true}, {dc + from * f, f}, dv + keys.begin * f, f);
      AddMatrixProduct(n, f, m, 1, {dscores, n, true}, {q + from * f, f}, dk + keys.begin * f, f);
      AddMatrixProduct(m, f, n, 1, {dscores, n}, {k + keys.begin * f, f}, dq + from * f, f);
    }
  }
  for (int part = 0; part < 3; ++part) {
    CopyRows(d.tokens, f, dqkv_sums + part * HeadElements(d), f, dqkv + head.qkv + part * f,
             QkvStride(d));
  }
}

int ForwardParts(int threads, const AttentionDims& d) {
  return PartsFor(threads, d.batch * d.heads * Tiles(d), CostOfTile(d));
}
int64_t ForwardPartScratch(const AttentionDims& d) {
  return TileElements(d) + 3 * TileRowElements(d);
}

int BackwardParts(int threads, const AttentionDims& d) {
  return PartsFor(threads, d.batch * d.heads, Tiles(d) * CostOfTile(d));
}
int64_t BackwardPartScratch(const AttentionDims& d) {
  return 7 * HeadElements(d) + d.tokens + 2 * TileElements(d);
}

}  // namespace

int64_t AttentionForwardScratch(int threads, const AttentionDims& dims) {
  return ForwardParts(threads, dims) * ForwardPartScratch(dims);
}

int64_t AttentionBackwardScratch(int threads, const AttentionDims& dims) {
  return BackwardParts(threads, dims) * BackwardPartScratch(dims);
}

void CpuAttentionForward(int threads, const AttentionDims& dims, ConstFloatSpan ids,
                         ConstValues qkv, float* scratch, Values context, float* statistics) {
  // Products run in the calling thread, because heads and tiles are divided among threads.
  const ScopedThreads one_thread(1);
  const int64_t tiles = Tiles(dims);
  ByType(qkv.type(), [&](auto zero) {
    using T = decltype(zero);
    ForEachPart(ForwardParts(threads, dims), dims.batch * dims.heads * tiles,
                [&](int part, int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    ForwardTile(dims, Head(dims, ids, i / tiles), TileAt(dims, i % tiles),
                                Data<T>(qkv), scratch + part * ForwardPartScratch(dims),
                                Data<T>(context), statistics);
                  }
                });
  });
}

void CpuAttentionBackward(int threads, const AttentionDims& dims, ConstFloatSpan ids,
                          ConstValues qkv, ConstValues context, ConstValues dcontext,
                          const float* statistics, float* scratch, Values dqkv) {
  const ScopedThreads one_thread(1);
  ByType(qkv.type(), [&](auto zero) {
    using T = decltype(zero);
    ForEachPart(BackwardParts(threads, dims), dims.batch * dims.heads,
                [&](int part, int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    BackwardHead(dims, Head(dims, ids, i), Data<T>(qkv), Data<T>(context),
                                 Data<T>(dcontext), statistics,
                                 scratch + part * BackwardPartScratch(dims), Data<T>(dqkv));
                  }
                });
  });
}

}  // namespace cadre
