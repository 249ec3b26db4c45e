// Shape inference of one layer: the limits, and what the rules of the operations consist of.
//
// Thread-compatible.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/ops/layer.h"

namespace cadre {

// Larger extents are typing errors, and their products would overflow.
inline constexpr int64_t kMaxExtent = 1 << 20;
// Limits of the elements of one sample of an activation and of the weights of one layer, more than
// the memory of hosts. The operations of layers that multiply extents of at most kMaxExtent by them
// do not overflow int64_t; LayerInference::Flops checks the others.
inline constexpr int64_t kMaxElements = int64_t{1} << 36;
inline constexpr int64_t kMaxWeights = int64_t{1} << 33;
// Operations of the loss per score.
inline constexpr int64_t kLossFlops = 5;
// Deviation of the rows of embeddings (as in Radford et al. 2019).
inline constexpr double kEmbeddingStddev = 0.02;

// The number of windows of `reach` elements, `stride` apart, that fit along `in` elements with
// `padding` at both ends. With `ceil`, also one that extends beyond the padding at the end, if it
// begins before it.
int64_t WindowsAlong(int64_t in, int64_t padding, int64_t reach, int64_t stride, bool ceil = false);

// "makes [..], more than the N elements that are allowed".
std::string TooManyElements(const Shape& shape, int64_t max);

// The number of elements of a shape; if it is above `max`, some number above `max`, without
// overflow. Requires: every extent is at most 2^31, max <= 2^40.
int64_t ElementsUpTo(const Shape& shape, int64_t max);

// Adds shapes, parameters and costs to a layer that has its name, kind, inputs and settings.
// Requires: input_shapes has an entry per input. The methods that return bool return false if they
// added a problem.
class LayerInference {
 public:
  // Both are borrowed.
  LayerInference(GraphLayer* layer, std::vector<LayerProblem>* problems)
      : layer_(*layer), problems_(*problems) {}

  GraphLayer& layer() { return layer_; }
  v1::Layer& settings() { return layer_.settings; }
  const Shape& in() const { return layer_.input(); }

  // Adds a problem of a field of the operation ("": the operation as a whole). Returns false.
  template <typename... Parts>
  bool Problem(absl::string_view field, const Parts&... message) {
    const char* op = LayerKindName(layer_.kind);
    problems_.push_back({layer_.spec_layer, field.empty() ? op : absl::StrCat(op, ".", field),
                         absl::StrCat(message...)});
    return false;
  }

  // Requires a value from 1 to kMaxExtent.
  bool Extent(absl::string_view field, int64_t value);
  bool AtMostExtent(absl::string_view field, int64_t value);
  // Requires a finite value of at least 0.
  bool NotNegative(absl::string_view field, float value);
  // Requires a value in [0, 1).
  bool Fraction(absl::string_view field, float value);
  // Require a shape of the first input, or a number of inputs.
  bool NeedsImage();
  // [features] or [tokens, features]: products and norms of features do not accept images.
  bool NeedsRows();
  bool NeedsSequence();
  bool NeedsInputs(size_t least);
  // Sets the output; a problem if it has too many elements.
  bool Output(Shape shape);
  // The output has the shape of the first input.
  bool OutputLikeInput(int64_t flops_per_element);
  // Sets the operations per sample to the product; a problem if that is no int64_t.
  bool Flops(std::initializer_list<int64_t> factors);
  // Adds a parameter; a problem if it has too many elements.
  bool Weight(const char* name, Shape shape, double stddev);
  // Adds a parameter whose initial elements are all equal.
  void Constant(const char* name, Shape shape, ParameterRole role, float value);

 private:
  GraphLayer& layer_;
  std::vector<LayerProblem>& problems_;
};

}  // namespace cadre
