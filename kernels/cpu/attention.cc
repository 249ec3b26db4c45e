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
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/bf16_tile_product.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// Queries and keys of a tile. The tiles of backward fit in a second-level cache of 256 KiB. With
// 128, products are not faster, and causal attention computes more of what the mask hides.
constexpr int64_t kTile = 64;

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

template <typename From, typename To>
CADRE_VECTOR_LOOP void CopyRows(int64_t rows, int64_t features, const From* from,
                                int64_t from_stride, To* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i, from += from_stride, to += to_stride) {
    for (int64_t c = 0; c < features; ++c) Store(to + c, Load<float>(from + c));
  }
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

// Elements of a tile of scores.
constexpr int64_t kTileElements = kTile * kTile;

int64_t HeadElements(const AttentionDims& d) { return d.tokens * d.head_features; }

// Tokens of the tiles, and features in whole vectors, to which bf16 copies are padded with zeros.
int64_t PaddedTokens(const AttentionDims& d) { return Tiles(d) * kTile; }
int64_t WholeVectors(int64_t columns) {
  return (columns + kPairColumns - 1) / kPairColumns * kPairColumns;
}
int64_t PaddedFeatures(const AttentionDims& d) { return WholeVectors(d.head_features); }
int64_t PaddedElements(const AttentionDims& d) { return PaddedTokens(d) * PaddedFeatures(d); }

// Scratch memory, of which parts are taken one after the other.
class Scratch {
 public:
  explicit Scratch(float* memory) : next_(memory) {}
  float* Floats(int64_t count) {
    float* const taken = next_;
    next_ += count;
    return taken;
  }
  // Requires: an even number.
  Bf16* Bf16s(int64_t count) { return reinterpret_cast<Bf16*>(Floats(count / 2)); }

 private:
  float* next_;
};

// The products of attention, in fp32 and in bf16. Scores and their gradients are [queries, kTile];
// the sums of a tile's contexts, and of gradients, have `width` elements for each token.

// One head of forward.
template <typename T>
class ForwardProducts;

template <>
class ForwardProducts<float> {
 public:
  ForwardProducts(const AttentionDims& d, float* memory)
      : d_(d), scores_(Scratch(memory).Floats(kTileElements)) {}
  static int64_t ScratchSize(const AttentionDims& /*d*/) { return kTileElements; }

  void SetHead(const float* qkv) { q_ = qkv; }
  void SetQueries(const Interval& queries) { queries_ = queries; }
  void Scores(const Interval& keys) {
    MatrixProduct(queries_.size(), keys.size(), d_.head_features, ScoreScale(d_),
                  {q_ + queries_.begin * QkvStride(d_), QkvStride(d_)},
                  {At(1, keys), QkvStride(d_), true}, scores_, kTile);
  }
  int64_t width() const { return d_.head_features; }
  float* scores() const { return scores_; }
  float* probabilities() const { return scores_; }
  void AddContext(const Interval& keys, float* sum) {
    AddMatrixProduct(queries_.size(), d_.head_features, keys.size(), 1, {scores_, kTile},
                     {At(2, keys), QkvStride(d_)}, sum, width());
  }

 private:
  const float* At(int64_t part, const Interval& keys) const {
    return q_ + part * d_.head_features + keys.begin * QkvStride(d_);
  }

  const AttentionDims& d_;
  const float* q_ = nullptr;
  Interval queries_;
  float* const scores_;
};

// The tokens of a head, copied for products of bf16.
struct Bf16Copies {
  const AttentionDims& d;

  // to[tokens][features].
  void Rows(const Interval& tokens, const Bf16* from, int64_t stride, Bf16* to) const {
    const int64_t width = PaddedFeatures(d);
    std::fill_n(to, tokens.size() * width, Bf16());
    CopyRows(tokens.size(), d.head_features, from + tokens.begin * stride, stride, to, width);
  }
  // to[tokens / 2][features][2].
  void TokenPairs(const Bf16* from, int64_t stride, Bf16* to) const {
    const int64_t width = PaddedFeatures(d);
    std::fill_n(to, PaddedElements(d), Bf16());
    for (int64_t t = 0; t < d.tokens; t += 2) {
      const Bf16* const first = from + t * stride;
      InterleaveRows(d.head_features, first, t + 1 < d.tokens ? first + stride : nullptr,
                     to + t * width);
    }
  }
  // to[tile][features / 2][kTile][2].
  void FeaturePairs(const Bf16* from, int64_t stride, Bf16* to) const {
    for (int64_t tile = 0; tile < Tiles(d); ++tile) {
      const Interval tokens = TileAt(d, tile);
      PairColumns(tokens.size(), d.head_features, from + tokens.begin * stride, stride, kTile,
                  to + tokens.begin * PaddedFeatures(d));
    }
  }
  int64_t feature_pairs() const { return (d.head_features + 1) / 2; }
};

constexpr int64_t kTilePairs = 2 * kTile;  // elements of the pairs of a tile's tokens

template <>
class ForwardProducts<Bf16> {
 public:
  ForwardProducts(const AttentionDims& d, float* memory)
      : d_(d), width_(PaddedFeatures(d)), copies_{d} {
    Scratch scratch(memory);
    scores_ = scratch.Floats(kTileElements);
    probabilities_ = scratch.Bf16s(kTileElements);
    queries_copy_ = scratch.Bf16s(kTile * width_);
    keys_copy_ = scratch.Bf16s(PaddedElements(d));
    values_copy_ = scratch.Bf16s(PaddedElements(d));
  }
  static int64_t ScratchSize(const AttentionDims& d) {
    return kTileElements * 3 / 2 + kTile * PaddedFeatures(d) / 2 + PaddedElements(d);
  }

  void SetHead(const Bf16* qkv) {
    if (qkv == q_) return;
    q_ = qkv;
    copies_.FeaturePairs(qkv + d_.head_features, QkvStride(d_), keys_copy_);
    copies_.TokenPairs(qkv + 2 * d_.head_features, QkvStride(d_), values_copy_);
  }
  void SetQueries(const Interval& queries) {
    queries_ = queries;
    copies_.Rows(queries, q_, QkvStride(d_), queries_copy_);
  }
  void Scores(const Interval& keys) {
    Bf16TileProduct{.m = queries_.size(),
                    .n = WholeVectors(keys.size()),
                    .pairs = copies_.feature_pairs(),
                    .scale = ScoreScale(d_)}
        .Run({queries_copy_, width_, 2}, keys_copy_ + keys.begin * width_, kTilePairs, scores_,
             kTile);
  }
  int64_t width() const { return width_; }
  float* scores() const { return scores_; }
  Bf16* probabilities() const { return probabilities_; }
  void AddContext(const Interval& keys, float* sum) {
    Bf16TileProduct{.m = queries_.size(), .n = width_, .pairs = (keys.size() + 1) / 2, .add = true}
        .Run({probabilities_, kTile, 2}, values_copy_ + keys.begin * width_, 2 * width_, sum,
             width_);
  }

 private:
  const AttentionDims& d_;
  const Bf16* q_ = nullptr;
  Interval queries_;
  const int64_t width_;
  const Bf16Copies copies_;
  float* scores_;
  Bf16 *probabilities_, *queries_copy_, *keys_copy_, *values_copy_;
};

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

// One head of backward. The gradients of scores are products with values first, then those of the
// scores.
template <typename T>
class BackwardProducts;

template <>
class BackwardProducts<float> {
 public:
  BackwardProducts(const AttentionDims& d, float* memory) : d_(d) {
    Scratch scratch(memory);
    for (float*& copy : copies_) copy = scratch.Floats(HeadElements(d));
    for (float*& sum : sums_) sum = scratch.Floats(HeadElements(d));
    scores_ = scratch.Floats(kTileElements);
    dscores_ = scratch.Floats(kTileElements);
  }
  static int64_t ScratchSize(const AttentionDims& d) {
    return 7 * HeadElements(d) + 2 * kTileElements;
  }

  int64_t width() const { return d_.head_features; }
  const std::array<float*, 3>& sums() const { return sums_; }
  float* scores() const { return scores_; }
  float* dscores() const { return dscores_; }
  void SetHead(const float* qkv, const float* dcontext) {
    const int64_t f = d_.head_features;
    for (int part = 0; part < 3; ++part) {
      CopyRows(d_.tokens, f, qkv + part * f, QkvStride(d_), copies_[part], f);
    }
    CopyRows(d_.tokens, f, dcontext, ContextStride(d_), copies_[3], f);
  }
  void Scores(const Interval& queries, const Interval& keys) {
    const int64_t m = queries.size(), n = keys.size(), f = d_.head_features;
    MatrixProduct(m, n, f, ScoreScale(d_), At(0, queries), Transposed(At(1, keys)), scores_, kTile);
    MatrixProduct(m, n, f, 1, At(3, queries), Transposed(At(2, keys)), dscores_, kTile);
  }
  void AddGradients(const Interval& queries, const Interval& keys) {
    const int64_t m = queries.size(), n = keys.size(), f = d_.head_features;
    float* const dq = sums_[0] + queries.begin * f;
    AddMatrixProduct(n, f, m, 1, {scores_, kTile, true}, At(3, queries), sums_[2] + keys.begin * f,
                     f);
    AddMatrixProduct(n, f, m, 1, {dscores_, kTile, true}, At(0, queries), sums_[1] + keys.begin * f,
                     f);
    AddMatrixProduct(m, f, n, 1, {dscores_, kTile}, At(1, keys), dq, f);
  }

 private:
  MatrixView At(int part, const Interval& tokens) const {
    return {copies_[part] + tokens.begin * d_.head_features, d_.head_features};
  }
  static MatrixView Transposed(const MatrixView& view) { return {view.data, view.stride, true}; }

  const AttentionDims& d_;
  std::array<float*, 4> copies_;  // q, k, v, dcontext
  std::array<float*, 3> sums_;    // dq, dk, dv
  float *scores_, *dscores_;
};

template <>
class BackwardProducts<Bf16> {
 public:
  BackwardProducts(const AttentionDims& d, float* memory)
      : d_(d), width_(PaddedFeatures(d)), copies_{d} {
    Scratch scratch(memory);
    for (float*& sum : sums_) sum = scratch.Floats(PaddedElements(d));
    for (Bf16** copy :
         {&q_rows_, &q_pairs_, &k_features_, &k_pairs_, &v_features_, &dc_rows_, &dc_pairs_}) {
      *copy = scratch.Bf16s(PaddedElements(d));
    }
    scores_ = scratch.Floats(kTileElements);
    dscores_ = scratch.Floats(kTileElements);
    for (Bf16** tile : {&p_pairs_, &ds_pairs_, &ds_rows_}) *tile = scratch.Bf16s(kTileElements);
  }
  static int64_t ScratchSize(const AttentionDims& d) {
    return PaddedElements(d) * 13 / 2 + kTileElements * 7 / 2;
  }

  int64_t width() const { return width_; }
  const std::array<float*, 3>& sums() const { return sums_; }
  float* scores() const { return scores_; }
  float* dscores() const { return dscores_; }
  void SetHead(const Bf16* qkv, const Bf16* dcontext) {
    const Interval all{0, d_.tokens};
    const int64_t stride = QkvStride(d_), f = d_.head_features;
    copies_.Rows(all, qkv, stride, q_rows_);
    copies_.TokenPairs(qkv, stride, q_pairs_);
    copies_.FeaturePairs(qkv + f, stride, k_features_);
    copies_.TokenPairs(qkv + f, stride, k_pairs_);
    copies_.FeaturePairs(qkv + 2 * f, stride, v_features_);
    copies_.Rows(all, dcontext, ContextStride(d_), dc_rows_);
    copies_.TokenPairs(dcontext, ContextStride(d_), dc_pairs_);
  }
  void Scores(const Interval& queries, const Interval& keys) {
    Bf16TileProduct product{.m = queries.size(),
                            .n = WholeVectors(keys.size()),
                            .pairs = copies_.feature_pairs(),
                            .scale = ScoreScale(d_)};
    const int64_t from = queries.begin * width_, to = keys.begin * width_;
    product.Run({q_rows_ + from, width_, 2}, k_features_ + to, kTilePairs, scores_, kTile);
    product.scale = 1;
    product.Run({dc_rows_ + from, width_, 2}, v_features_ + to, kTilePairs, dscores_, kTile);
  }
  void AddGradients(const Interval& queries, const Interval& keys) {
    const int64_t m = queries.size(), n = keys.size();
    for (int64_t i = 0; i < m; i += 2) {
      const bool alone = i + 1 == m;
      const auto interleave = [&](const float* rows, Bf16* pairs) {
        const float* const first = rows + i * kTile;
        InterleaveRows(kTile, first, alone ? nullptr : first + kTile, pairs + i * kTile);
      };
      interleave(scores_, p_pairs_);
      interleave(dscores_, ds_pairs_);
    }
    CopyRows(m, kTile, dscores_, kTile, ds_rows_, kTile);
    const int64_t from = queries.begin * width_, to = keys.begin * width_;
    Bf16TileProduct product{.m = n, .n = width_, .pairs = (m + 1) / 2, .add = true};
    product.Run({p_pairs_, 2, kTilePairs}, dc_pairs_ + from, 2 * width_, sums_[2] + to, width_);
    product.Run({ds_pairs_, 2, kTilePairs}, q_pairs_ + from, 2 * width_, sums_[1] + to, width_);
    product.m = m;
    product.pairs = (n + 1) / 2;
    product.Run({ds_rows_, kTile, 2}, k_pairs_ + to, 2 * width_, sums_[0] + from, width_);
  }

 private:
  const AttentionDims& d_;
  const int64_t width_;
  const Bf16Copies copies_;
  std::array<float*, 3> sums_;  // dq, dk, dv
  float *scores_, *dscores_;
  Bf16 *q_rows_, *q_pairs_, *k_features_, *k_pairs_, *v_features_, *dc_rows_, *dc_pairs_;
  Bf16 *p_pairs_, *ds_pairs_, *ds_rows_;
};

// One head. `weighted`: [tokens].
template <typename T>
void BackwardHead(const AttentionDims& d, const Head& head, const T* qkv, const T* context,
                  const T* dcontext, const float* statistics, BackwardProducts<T>& products,
                  float* weighted, T* dqkv) {
  const int64_t f = d.head_features, width = products.width();
  products.SetHead(qkv + head.qkv, dcontext + head.context);
  for (int64_t t = 0; t < d.tokens; ++t) {
    const int64_t at = head.context + t * ContextStride(d);
    weighted[t] = Dot(f, dcontext + at, context + at);
  }
  for (float* const sum : products.sums()) std::fill_n(sum, d.tokens * width, 0.0F);
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
  for (int part = 0; part < 3; ++part) {
    CopyRows(d.tokens, f, products.sums()[part], width, dqkv + head.qkv + part * f, QkvStride(d));
  }
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
