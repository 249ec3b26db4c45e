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
// for each tile of the other kind (in fp32, only in backward).
//
// In bf16 products have bf16 factors, probabilities and gradients of scores among them, and fp32
// sums; everything between products is computed in fp32. The copies are made in the layouts of
// Bf16TileProduct.
//
// The order of every sum depends on the extents only, so that results do not depend on the division
// of heads among ranks or of work among threads.
//
// Memory: the buffers of each thread, linear in the tokens: a head's copies of its inputs and its
// gradients (7 * tokens * head_features floats in backward) and two tiles of scores.
//
// Limits: forward divides heads and tiles of queries among threads, backward whole heads, so that
// threads beyond samples * heads are idle in backward.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_products.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// p[0, seen) = exp(x - m) for the scores x of one query, and p[seen, n) = 0. m and l are the
// query's running maximum and sum, and context[features] its running context. p may be the same as
// x.
template <typename T>
CADRE_VECTOR_LOOP void AddScores(int64_t seen, int64_t n, int64_t features, const float* x, T* p,
                                 float* __restrict context, float* m, double* l) {
  float largest = *m;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < seen; ++i) largest = x[i] > largest ? x[i] : largest;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < seen; ++i) {
    const float e = Exp(x[i] - largest);
    Store(p + i, e);
    total += e;
  }
  for (int64_t i = seen; i < n; ++i) Store(p + i, 0.0F);
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
CADRE_VECTOR_LOOP float Dot(int64_t n, const T* x, const T* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += Load<float>(x + i) * Load<float>(y + i);
  return sum;
}

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
  // `scores`: of `queries` queries, [queries, kTile].
  void HideKeys(int64_t queries, const Interval& keys, float* scores) const {
    if (!masks()) return;
    for (int64_t i = 0; i < queries; ++i) {
      HideScores(keys.size(), IdsOf(keys).data(), padding, scores + i * kTile);
    }
  }
  bool masks() const { return !ids.empty(); }

  int64_t qkv, context, statistics;

 private:
  ConstFloatSpan IdsOf(const Interval& keys) const {
    return masks() ? ids.subspan(keys.begin, keys.size()) : ids;
  }

  // Ids of the sample's tokens; empty if no key is hidden.
  ConstFloatSpan ids;
  float padding;
};

// How many of the keys a query attends to.
int64_t Seen(const AttentionDims& d, int64_t query, const Interval& keys) {
  return d.causal ? std::clamp<int64_t>(query + 1 - keys.begin, 0, keys.size()) : keys.size();
}

// Elements of a tile's work, for dividing it.
int64_t CostOfTile(const AttentionDims& d) {
  return std::min(d.tokens, kTile) * d.tokens * (4 + d.head_features / 8);
}

// One tile of queries of one head. `sum`: [kTile, width].
template <typename T>
void ForwardTile(const AttentionDims& d, const Head& head, const Interval& queries,
                 ForwardProducts<T>& products, float* sum, T* context, float* statistics) {
  const int64_t f = d.head_features, width = products.width();
  products.SetQueries(queries);
  float m[kTile];
  double l[kTile] = {};
  std::fill_n(m, queries.size(), std::numeric_limits<float>::lowest());
  std::fill_n(sum, queries.size() * width, 0.0F);
  for (int64_t tile = 0; tile < Tiles(d); ++tile) {
    const Interval keys = TileAt(d, tile);
    if (d.causal && keys.begin >= queries.end) break;
    if (head.HidesAll(keys)) continue;
    products.Scores(keys);
    head.HideKeys(queries.size(), keys, products.scores());
    for (int64_t i = 0; i < queries.size(); ++i) {
      AddScores(Seen(d, queries.begin + i, keys), kTile, f, products.scores() + i * kTile,
                products.probabilities() + i * kTile, sum + i * width, m + i, l + i);
    }
    products.AddContext(keys, sum);
  }
  for (int64_t i = 0; i < queries.size(); ++i) {
    const int64_t token = queries.begin + i;
    const bool attends = !head.masks() || l[i] > 0;
    Scale(f, attends ? 1 / l[i] : 0, sum + i * width,
          context + head.context + token * ContextStride(d));
    statistics[head.statistics + token] = attends ? m[i] + std::log(l[i]) : 0;
  }
}

// One head. `weighted`: [tokens].
template <typename T>
void BackwardHead(const AttentionDims& d, const Head& head, const T* qkv, const T* context,
                  const T* dcontext, const float* statistics, BackwardProducts<T>& products,
                  float* weighted, T* dqkv) {
  products.SetHead(qkv + head.qkv, dcontext + head.context);
  for (int64_t t = 0; t < d.tokens; ++t) {
    const int64_t at = head.context + t * ContextStride(d);
    weighted[t] = Dot(d.head_features, dcontext + at, context + at);
  }
  for (int64_t key_tile = 0; key_tile < Tiles(d); ++key_tile) {
    const Interval keys = TileAt(d, key_tile);
    if (head.HidesAll(keys)) continue;
    for (int64_t tile = d.causal ? key_tile : 0; tile < Tiles(d); ++tile) {
      const Interval queries = TileAt(d, tile);
      products.Scores(queries, keys);
      head.HideKeys(queries.size(), keys, products.scores());
      for (int64_t i = 0; i < queries.size(); ++i) {
        const int64_t query = queries.begin + i;
        ScoreGradients(Seen(d, query, keys), kTile, ScoreScale(d),
                       statistics[head.statistics + query], weighted[query],
                       products.scores() + i * kTile, products.dscores() + i * kTile);
      }
      products.AddGradients(queries, keys);
    }
  }
  products.StoreGradients(dqkv + head.qkv);
}

int ForwardParts(int threads, const AttentionDims& d) {
  return PartsFor(threads, d.batch * d.heads * Tiles(d), CostOfTile(d));
}
// `sum` of ForwardTile, and the products.
template <typename T>
int64_t ForwardPartScratch(const AttentionDims& d) {
  return kTile * PaddedFeatures(d) + ForwardProducts<T>::ScratchSize(d);
}

int BackwardParts(int threads, const AttentionDims& d) {
  return PartsFor(threads, d.batch * d.heads, Tiles(d) * CostOfTile(d));
}
template <typename T>
int64_t BackwardPartScratch(const AttentionDims& d) {
  return PaddedTokens(d) + BackwardProducts<T>::ScratchSize(d);
}

}  // namespace

int64_t AttentionForwardScratch(int threads, const AttentionDims& dims, DType type) {
  int64_t size = 0;
  ByType(type, [&](auto zero) { size = ForwardPartScratch<decltype(zero)>(dims); });
  return ForwardParts(threads, dims) * size;
}

int64_t AttentionBackwardScratch(int threads, const AttentionDims& dims, DType type) {
  int64_t size = 0;
  ByType(type, [&](auto zero) { size = BackwardPartScratch<decltype(zero)>(dims); });
  return BackwardParts(threads, dims) * size;
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
                  float* const sum = scratch + part * ForwardPartScratch<T>(dims);
                  ForwardProducts<T> products(dims, sum + kTile * PaddedFeatures(dims));
                  for (int64_t i = begin; i < end; ++i) {
                    const Head head(dims, ids, i / tiles);
                    products.SetHead(Data<T>(qkv) + head.qkv);
                    ForwardTile(dims, head, TileAt(dims, i % tiles), products, sum,
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
                  float* const weighted = scratch + part * BackwardPartScratch<T>(dims);
                  BackwardProducts<T> products(dims, weighted + PaddedTokens(dims));
                  for (int64_t i = begin; i < end; ++i) {
                    BackwardHead(dims, Head(dims, ids, i), Data<T>(qkv), Data<T>(context),
                                 Data<T>(dcontext), statistics, products, weighted, Data<T>(dqkv));
                  }
                });
  });
}

}  // namespace cadre
