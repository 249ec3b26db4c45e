// The products of attention (attention.cc) on tiles of one head, in fp32 and in bf16: scores,
// contexts and their gradients.
//
// Borrow extents and scratch memory. Thread-compatible. For attention.cc only.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/bf16_tile_product.h"
#include "kernels/cpu/matrix_product.h"
#include "tensor/elements.h"
#include "tensor/interval.h"

namespace cadre {

// Queries and keys of a tile. The tiles of backward fit in a second-level cache of 256 KiB. With
// 128, products are not faster, and causal attention computes more of what the mask hides.
inline constexpr int64_t kTile = 64;

inline int64_t QkvStride(const AttentionDims& d) { return 3 * d.heads * d.head_features; }
inline int64_t ContextStride(const AttentionDims& d) { return d.heads * d.head_features; }

inline float ScoreScale(const AttentionDims& d) {
  const float features = d.head_features;
  return 1.0F / std::sqrt(features);
}

inline int64_t Tiles(const AttentionDims& d) { return (d.tokens + kTile - 1) / kTile; }

// Tokens of a tile.
inline Interval TileAt(const AttentionDims& d, int64_t index) {
  return {index * kTile, std::min(d.tokens, (index + 1) * kTile)};
}

// Elements of a tile of scores.
inline constexpr int64_t kTileElements = kTile * kTile;

inline int64_t HeadElements(const AttentionDims& d) { return d.tokens * d.head_features; }

// Tokens of the tiles, and features in whole vectors, to which bf16 copies are padded with zeros.
inline int64_t PaddedTokens(const AttentionDims& d) { return Tiles(d) * kTile; }
inline int64_t WholeVectors(int64_t columns) {
  return (columns + kPairColumns - 1) / kPairColumns * kPairColumns;
}
inline int64_t PaddedFeatures(const AttentionDims& d) { return WholeVectors(d.head_features); }
inline int64_t PaddedElements(const AttentionDims& d) {
  return PaddedTokens(d) * PaddedFeatures(d);
}

// Scores and their gradients are [queries, kTile]; the sums of a tile's contexts, and of gradients,
// have `width` elements for each token.

// One head of forward.
template <typename T>
class ForwardProducts;

template <>
class ForwardProducts<float> {
 public:
  ForwardProducts(const AttentionDims& d, float* memory) : d_(d), scores_(memory) {}
  static int64_t ScratchSize(const AttentionDims& /*d*/) { return kTileElements; }

  void SetHead(const float* qkv) { q_ = qkv; }
  void SetQueries(const Interval& queries) { queries_ = queries; }
  void Scores(const Interval& keys);
  int64_t width() const { return d_.head_features; }
  float* scores() const { return scores_; }
  float* probabilities() const { return scores_; }
  void AddContext(const Interval& keys, float* sum);

 private:
  const float* At(int64_t part, const Interval& keys) const {
    return q_ + part * d_.head_features + keys.begin * QkvStride(d_);
  }

  const AttentionDims& d_;
  const float* q_ = nullptr;
  Interval queries_;
  float* const scores_;
};

template <>
class ForwardProducts<Bf16> {
 public:
  ForwardProducts(const AttentionDims& d, float* memory);
  static int64_t ScratchSize(const AttentionDims& d) {
    return kTileElements * 3 / 2 + kTile * PaddedFeatures(d) / 2 + PaddedElements(d);
  }

  void SetHead(const Bf16* qkv);
  void SetQueries(const Interval& queries);
  void Scores(const Interval& keys);
  int64_t width() const { return width_; }
  float* scores() const { return scores_; }
  Bf16* probabilities() const { return probabilities_; }
  void AddContext(const Interval& keys, float* sum);

 private:
  const AttentionDims& d_;
  const Bf16* q_ = nullptr;
  Interval queries_;
  const int64_t width_;
  float* scores_;
  Bf16 *probabilities_, *queries_copy_, *keys_copy_, *values_copy_;
};

// One head of backward. Scores computes the scores and, as products with values, the gradients of
// probabilities; AddGradients expects probabilities and the gradients of scores in their place.
template <typename T>
class BackwardProducts;

template <>
class BackwardProducts<float> {
 public:
  BackwardProducts(const AttentionDims& d, float* memory);
  static int64_t ScratchSize(const AttentionDims& d) {
    return 7 * HeadElements(d) + 2 * kTileElements;
  }

  void SetHead(const float* qkv, const float* dcontext);
  void Scores(const Interval& queries, const Interval& keys);
  float* scores() const { return scores_; }
  float* dscores() const { return dscores_; }
  void AddGradients(const Interval& queries, const Interval& keys);
  void StoreGradients(float* dqkv) const;

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
  BackwardProducts(const AttentionDims& d, float* memory);
  static int64_t ScratchSize(const AttentionDims& d) {
    return PaddedElements(d) * 13 / 2 + kTileElements * 7 / 2;
  }

  void SetHead(const Bf16* qkv, const Bf16* dcontext);
  void Scores(const Interval& queries, const Interval& keys);
  float* scores() const { return scores_; }
  float* dscores() const { return dscores_; }
  void AddGradients(const Interval& queries, const Interval& keys);
  void StoreGradients(Bf16* dqkv) const;

 private:
  const AttentionDims& d_;
  const int64_t width_;
  std::array<float*, 3> sums_;  // dq, dk, dv
  float *scores_, *dscores_;
  Bf16 *q_rows_, *q_pairs_, *k_features_, *k_pairs_, *v_features_, *dc_rows_, *dc_pairs_;
  Bf16 *p_pairs_, *ds_pairs_, *ds_rows_;
};

}  // namespace cadre
