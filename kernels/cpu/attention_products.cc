#include "kernels/cpu/attention_products.h"

#include "kernels/cpu/vector_loops.h"

namespace cadre {
namespace {

constexpr int64_t kTilePairs = 2 * kTile;  // elements of the pairs of a tile's tokens

template <typename From, typename To>
CADRE_VECTOR_LOOP void CopyRows(int64_t rows, int64_t features, const From* from,
                                int64_t from_stride, To* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i, from += from_stride, to += to_stride) {
    for (int64_t c = 0; c < features; ++c) Store(to + c, Load<float>(from + c));
  }
}

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
};

int64_t FeaturePairs(const AttentionDims& d) { return (d.head_features + 1) / 2; }

// dq, dk and dv in the rows of the head's queries, keys and values.
template <typename T>
void StoreSums(const AttentionDims& d, const std::array<float*, 3>& sums, int64_t width, T* dqkv) {
  for (int part = 0; part < 3; ++part) {
    CopyRows(d.tokens, d.head_features, sums[part], width, dqkv + part * d.head_features,
             QkvStride(d));
  }
}

}  // namespace

void ForwardProducts<float>::Scores(const Interval& keys) {
  MatrixProduct(queries_.size(), keys.size(), d_.head_features, ScoreScale(d_),
                {q_ + queries_.begin * QkvStride(d_), QkvStride(d_)},
                {At(1, keys), QkvStride(d_), true}, scores_, kTile);
}

void ForwardProducts<float>::AddContext(const Interval& keys, float* sum) {
  AddMatrixProduct(queries_.size(), d_.head_features, keys.size(), 1, {scores_, kTile},
                   {At(2, keys), QkvStride(d_)}, sum, width());
}

ForwardProducts<Bf16>::ForwardProducts(const AttentionDims& d, float* memory)
    : d_(d), width_(PaddedFeatures(d)) {
  Scratch scratch(memory);
  scores_ = scratch.Floats(kTileElements);
  probabilities_ = scratch.Bf16s(kTileElements);
  queries_copy_ = scratch.Bf16s(kTile * width_);
  keys_copy_ = scratch.Bf16s(PaddedElements(d));
  values_copy_ = scratch.Bf16s(PaddedElements(d));
}

void ForwardProducts<Bf16>::SetHead(const Bf16* qkv) {
  if (qkv == q_) return;
  q_ = qkv;
  Bf16Copies{d_}.FeaturePairs(qkv + d_.head_features, QkvStride(d_), keys_copy_);
  Bf16Copies{d_}.TokenPairs(qkv + 2 * d_.head_features, QkvStride(d_), values_copy_);
}

void ForwardProducts<Bf16>::SetQueries(const Interval& queries) {
  queries_ = queries;
  Bf16Copies{d_}.Rows(queries, q_, QkvStride(d_), queries_copy_);
}

void ForwardProducts<Bf16>::Scores(const Interval& keys) {
  Bf16TileProduct{.m = queries_.size(),
                  .n = WholeVectors(keys.size()),
                  .pairs = FeaturePairs(d_),
                  .scale = ScoreScale(d_)}
      .Run({queries_copy_, width_, 2}, keys_copy_ + keys.begin * width_, kTilePairs, scores_,
           kTile);
}

void ForwardProducts<Bf16>::AddContext(const Interval& keys, float* sum) {
  Bf16TileProduct{.m = queries_.size(), .n = width_, .pairs = (keys.size() + 1) / 2, .add = true}
      .Run({probabilities_, kTile, 2}, values_copy_ + keys.begin * width_, 2 * width_, sum, width_);
}

BackwardProducts<float>::BackwardProducts(const AttentionDims& d, float* memory) : d_(d) {
  Scratch scratch(memory);
  for (float*& copy : copies_) copy = scratch.Floats(HeadElements(d));
  for (float*& sum : sums_) sum = scratch.Floats(HeadElements(d));
  scores_ = scratch.Floats(kTileElements);
  dscores_ = scratch.Floats(kTileElements);
}

void BackwardProducts<float>::SetHead(const float* qkv, const float* dcontext) {
  const int64_t f = d_.head_features;
  for (int part = 0; part < 3; ++part) {
    CopyRows(d_.tokens, f, qkv + part * f, QkvStride(d_), copies_[part], f);
  }
  CopyRows(d_.tokens, f, dcontext, ContextStride(d_), copies_[3], f);
  for (float* const sum : sums_) std::fill_n(sum, HeadElements(d_), 0.0F);
}

void BackwardProducts<float>::Scores(const Interval& queries, const Interval& keys) {
  const int64_t m = queries.size(), n = keys.size(), f = d_.head_features;
  MatrixProduct(m, n, f, ScoreScale(d_), At(0, queries), Transposed(At(1, keys)), scores_, kTile);
  MatrixProduct(m, n, f, 1, At(3, queries), Transposed(At(2, keys)), dscores_, kTile);
}

void BackwardProducts<float>::AddGradients(const Interval& queries, const Interval& keys) {
  const int64_t m = queries.size(), n = keys.size(), f = d_.head_features;
  float* const dq = sums_[0] + queries.begin * f;
  AddMatrixProduct(n, f, m, 1, {scores_, kTile, true}, At(3, queries), sums_[2] + keys.begin * f,
                   f);
  AddMatrixProduct(n, f, m, 1, {dscores_, kTile, true}, At(0, queries), sums_[1] + keys.begin * f,
                   f);
  AddMatrixProduct(m, f, n, 1, {dscores_, kTile}, At(1, keys), dq, f);
}

void BackwardProducts<float>::StoreGradients(float* dqkv) const {
  StoreSums(d_, sums_, d_.head_features, dqkv);
}

BackwardProducts<Bf16>::BackwardProducts(const AttentionDims& d, float* memory)
    : d_(d), width_(PaddedFeatures(d)) {
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

void BackwardProducts<Bf16>::SetHead(const Bf16* qkv, const Bf16* dcontext) {
  const Interval all{0, d_.tokens};
  const int64_t stride = QkvStride(d_), f = d_.head_features;
  const Bf16Copies copies{d_};
  copies.Rows(all, qkv, stride, q_rows_);
  copies.TokenPairs(qkv, stride, q_pairs_);
  copies.FeaturePairs(qkv + f, stride, k_features_);
  copies.TokenPairs(qkv + f, stride, k_pairs_);
  copies.FeaturePairs(qkv + 2 * f, stride, v_features_);
  copies.Rows(all, dcontext, ContextStride(d_), dc_rows_);
  copies.TokenPairs(dcontext, ContextStride(d_), dc_pairs_);
  for (float* const sum : sums_) std::fill_n(sum, d_.tokens * width_, 0.0F);
}

void BackwardProducts<Bf16>::Scores(const Interval& queries, const Interval& keys) {
  Bf16TileProduct product{.m = queries.size(),
                          .n = WholeVectors(keys.size()),
                          .pairs = FeaturePairs(d_),
                          .scale = ScoreScale(d_)};
  const int64_t from = queries.begin * width_, to = keys.begin * width_;
  product.Run({q_rows_ + from, width_, 2}, k_features_ + to, kTilePairs, scores_, kTile);
  product.scale = 1;
  product.Run({dc_rows_ + from, width_, 2}, v_features_ + to, kTilePairs, dscores_, kTile);
}

void BackwardProducts<Bf16>::AddGradients(const Interval& queries, const Interval& keys) {
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

void BackwardProducts<Bf16>::StoreGradients(Bf16* dqkv) const {
  StoreSums(d_, sums_, width_, dqkv);
}

}  // namespace cadre
