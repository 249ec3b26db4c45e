// One description per operation: what its kind decides, apart from its kernels, its layer
// (worker/nn/layer.h) and the memory that it needs (plan/layer_memory.h).
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/ops/layer.h"

namespace cadre {

class LayerInference;  // model/ops/inference.h

// How an index of an operation relates to one tensor: it is a dimension (0: the samples) or not.
struct IndexPlace {
  enum class Kind {
    kDimension,
    // Not a dimension: under a split, the output, or the gradient of an input or parameter, is a
    // partial sum.
    kSummed,
    // Not a dimension, but the gradient is equal on all ranks (a bias under a split of `in`).
    kSame,
  };
  Kind kind = Kind::kSummed;
  int dimension = 0;

  static IndexPlace Dimension(int d) { return {Kind::kDimension, d}; }
  static IndexPlace Summed() { return {Kind::kSummed, 0}; }
  static IndexPlace Same() { return {Kind::kSame, 0}; }
  friend bool operator==(const IndexPlace&, const IndexPlace&) = default;
};

// An index of an operation, and its relation to each tensor of the operation.
struct OpIndex {
  std::string name;
  // One entry per input; `parameters` has one per parameter of the layer.
  std::vector<IndexPlace> inputs;
  IndexPlace output;
  std::vector<IndexPlace> parameters;
  // The number of parts must divide this number; 0: no restriction.
  int64_t divisible = 0;
  // Whether a part of the output needs input elements beyond the same part.
  bool halo = false;
};

// The values that an operation's backward reads, besides the gradient of its output.
struct SavedForBackward {
  bool x = false;
  bool y = false;
};

// How a plan that follows rules splits an operation (plan/search/planner.h). Mesh axes are `data`,
// `space` and `model`.
enum class SplitRule {
  // Samples over all axes.
  kAllSamples,
  // Samples over the axes that split the samples of activations that are not images.
  kRowSamples,
  // Samples over data and model.
  kImageSamples,
  // Images: samples and rows. Others: samples as the first input, all features on each rank.
  kKeepSamples,
  // Images: samples and rows. Others: samples and features as the inputs, if these are equal.
  kKeepSplit,
  // Outputs or inputs of a product over model.
  kOutputs,
  // Heads over model.
  kHeads,
};

struct Operation {
  LayerKind kind = LayerKind::OP_NOT_SET;
  // Adds the output's shape, parameters and costs; false if it added a problem.
  bool (*infer)(LayerInference& infer) = nullptr;
  // Requires: a layer that has been inferred.
  std::vector<OpIndex> (*indices)(const GraphLayer& layer) = nullptr;
  SavedForBackward saved;
  // Whether the output may overwrite an input, and the input's gradient the output's gradient.
  bool in_place = false;
  SplitRule split_rule = SplitRule::kKeepSamples;
  bool takes_several = false;
  // Whether it slides GraphLayer.window over an image.
  bool has_window = false;
  // Whether a matrix product dominates it, so that its splits matter most.
  bool is_product = false;
  // Whether backward computes the gradient of the input before those of the parameters.
  bool input_gradient_first = false;
};

// Requires: not OP_NOT_SET or kUse.
const Operation& Describe(LayerKind kind);

}  // namespace cadre
