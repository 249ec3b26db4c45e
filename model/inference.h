// Part of model/graph.h: shape inference of one layer, and the limits of a model.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/graph.h"

namespace cadre {

// Larger extents are typing errors, and their products would overflow.
inline constexpr int64_t kMaxExtent = 1 << 20;
// Limits of the elements of one sample of an activation and of the weights of one layer, so that
// twice their product does not overflow int64_t.
inline constexpr int64_t kMaxElements = 1 << 26;
inline constexpr int64_t kMaxWeights = int64_t{1} << 33;
// Limit of layers of a model, after expansion of blocks.
inline constexpr int kMaxLayers = 1 << 14;
// Limit of a layer's name, after expansion of blocks.
inline constexpr size_t kMaxLayerNameCharacters = 1000;
// The name that refers to the input of the model.
inline constexpr char kInputName[] = "input";
// Operations of the loss per score.
inline constexpr int64_t kLossFlops = 5;
// Limit of inputs of one layer.
inline constexpr int kMaxInputs = 1024;

// Adds shapes, parameters and costs to a layer that has its name, kind, inputs and settings, by the
// rules of its kind. Returns false if it added a problem. Requires: input_shapes has an entry per
// input.
bool InferLayer(GraphLayer* layer, std::vector<LayerProblem>* problems);

// The number of windows of `reach` elements, `stride` apart, that fit along `in` elements with
// `padding` at both ends. With `ceil`, also one that extends beyond the padding at the end, if it
// begins before it.
int64_t WindowsAlong(int64_t in, int64_t padding, int64_t reach, int64_t stride, bool ceil = false);

// "makes [..], more than the N elements that are allowed".
std::string TooManyElements(const Shape& shape, int64_t max);

// The number of elements of a shape; if it is above `max`, some number above `max`, without
// overflow. Requires: every extent is at most 2^31, max <= 2^40.
int64_t ElementsUpTo(const Shape& shape, int64_t max);

}  // namespace cadre
