// The part of a layer that one rank computes, as far as it matters to how long that takes: what
// measured times are filed under, and looked up by.
//
// Values and pure functions; thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "proto/cadre/v1/profile.pb.h"
#include "spec/graph.h"
#include "spec/op_indices.h"
#include "tensor/mesh.h"

namespace cadre {

struct LayerPart {
  // Of the rank that has most.
  int64_t samples = 0;
  // Parts into which the rows of the output (tokens of a sequence) are cut; the outputs, or
  // whatever else the layer keeps apart (channels, features, heads, groups, columns); the inputs
  // that it sums over.
  int rows = 1;
  int outs = 1;
  int ins = 1;

  friend auto operator<=>(const LayerPart&, const LayerPart&) = default;
  // What is left of the whole layer's work on one sample, times samples.
  double work() const {
    return static_cast<double>(samples) / (static_cast<double>(rows) * outs * ins);
  }
};

// Of a batch of `samples` under these splits.
LayerPart PartOf(const LayerLayouts& layer, const Mesh& mesh, int64_t samples);

// What a time is filed under; parts of one layer stand together.
struct LayerPartKey {
  std::string layer;
  LayerPart part;

  friend auto operator<=>(const LayerPartKey&, const LayerPartKey&) = default;
};
LayerPartKey KeyOf(const v1::LayerTime& time);
// A time under this key, without seconds. KeyOf gives the key back.
v1::LayerTime TimeOf(const LayerPartKey& key);

}  // namespace cadre
