// The part of a layer that one rank computes, described only by what determines its compute time.
// Measured times are stored and looked up by this description.
//
// Values and pure functions; thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "model/op_indices.h"
#include "proto/cadre/v1/profile.pb.h"
#include "tensor/mesh.h"

namespace cadre {

// Size of the largest part if `n` is divided into `parts` near-equal parts (PartBegin).
inline int64_t LargestPart(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

struct LayerPart {
  // Samples on the rank that has the most.
  int64_t samples = 0;
  // Number of parts of the rows of the output (or the tokens of a sequence); of the outputs, or the
  // channels, features, heads, groups or columns; and of the inputs that the layer sums over.
  int rows = 1;
  int outs = 1;
  int ins = 1;

  // Splits one index of the layer (model/op_indices.h) into parts.
  void Split(absl::string_view index, int parts);

  friend auto operator<=>(const LayerPart&, const LayerPart&) = default;
  // The part's work, in units of the whole layer's work on one sample.
  double work() const { return samples / (1.0 * rows * outs * ins); }
};

// The largest part of a batch of `samples` under these splits.
LayerPart PartOf(const LayerLayouts& layer, const Mesh& mesh, int64_t samples);

// The key of a measured time. Keys of one layer are adjacent in order.
struct LayerPartKey {
  std::string layer;
  LayerPart part;

  friend auto operator<=>(const LayerPartKey&, const LayerPartKey&) = default;
};
LayerPartKey KeyOf(const v1::LayerTime& time);
// A profile entry for this key, without seconds; the inverse of KeyOf.
v1::LayerTime TimeOf(const LayerPartKey& key);

}  // namespace cadre
