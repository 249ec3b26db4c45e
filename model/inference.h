// Part of model/graph.h: shape inference of one layer. Each family of operations has a file
// (inference_window.cc, inference_norm.cc, ...).
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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
// Limit of inputs of one layer.
inline constexpr int kMaxInputs = 1024;

// Adds shapes, parameters and costs to a layer that has its name, kind, inputs and settings. The
// methods return false if they added a problem.
class LayerInference {
 public:
  // Both are borrowed.
  LayerInference(GraphLayer* layer, std::vector<LayerProblem>* problems)
      : layer_(*layer), problems_(*problems) {}

  // Applies the rules of the layer's kind. Requires: input_shapes has an entry per input.
  bool Run();

 private:
  // --- all families ---
  const Shape& in() const { return layer_.input(); }
  v1::Layer& settings() { return layer_.settings; }

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

  bool NeedsImage();
  // Requires an input [features] or [tokens, features].
  bool NeedsRows();
  bool NeedsInputs(size_t least);

  // Sets the output; a problem if it has too many elements.
  bool Output(Shape shape);
  bool OutputLikeInput(int64_t flops_per_element);
  // Adds a parameter; a problem if it has too many elements.
  bool Weight(const char* name, Shape shape, double stddev);
  void Constant(const char* name, Shape shape, ParameterRole role, float value);

  // --- windows ---
  bool Convolution();
  bool ConvolutionWindow();
  bool Pool(v1::Pooling& settings);
  // Sets the output from `window`. Problems name the two fields.
  bool SlideWindow(int64_t channels, const char* height_field, const char* width_field);
  bool GlobalAveragePool();
  bool Flatten();

  // --- products ---
  bool FullyConnected();
  bool Embedding();
  bool Attention();

  // --- norms ---
  bool BatchNorm();
  bool LayerNorm();
  bool LocalResponseNorm();

  // --- others ---
  bool Dropout();
  bool Add();
  bool Concat();
  bool SoftmaxCrossEntropy();

  GraphLayer& layer_;
  std::vector<LayerProblem>& problems_;
};

// "makes [..], more than the N elements that are allowed".
std::string TooManyElements(const Shape& shape, int64_t max);

// The number of elements of a shape; if it is above `max`, some number above `max`, without
// overflow. Requires: every extent is at most 2^31, max <= 2^40.
int64_t ElementsUpTo(const Shape& shape, int64_t max);

}  // namespace cadre
