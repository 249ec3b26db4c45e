// Part of spec/graph.h: the rules by which one layer's shapes follow from those of its inputs. A
// family of operations has a file (inference_window.cc, inference_norm.cc, ...).
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "spec/graph.h"

namespace cadre {

// Extents beyond this are typing errors, and would overflow sizes further on.
inline constexpr int64_t kMostExtent = 1 << 20;
// Elements of one sample between layers, and weights of one layer: beyond any device's memory, and
// such that their product times two is a number that int64_t holds.
inline constexpr int64_t kMostElements = 1 << 26;
inline constexpr int64_t kMostWeights = int64_t{1} << 33;
// Layers of a model, blocks expanded.
inline constexpr int kMostLayers = 1 << 14;
// Of the name of a layer, blocks expanded.
inline constexpr size_t kMostLayerNameCharacters = 1000;
// Of one layer.
inline constexpr int kMostInputs = 1024;

// A layer whose name, kind, inputs and settings are known, and whose shapes are not yet. The rules
// below fill in what is missing. Rules return false where they noted a problem.
class LayerInference {
 public:
  // Both are lent for the life of this object.
  LayerInference(GraphLayer* layer, std::vector<LayerProblem>* problems)
      : layer_(*layer), problems_(*problems) {}

  // By kind. Requires: input_shapes has an entry per input.
  bool Run();

 private:
  // --- for all families
  // ---------------------------------------------------------------------------
  const Shape& in() const { return layer_.input(); }
  v1::Layer& settings() { return layer_.settings; }

  // Notes a problem of a field of the operation ("": of the operation as a whole). False, so that
  // rules can return it.
  template <typename... Parts>
  bool Problem(absl::string_view field, const Parts&... message) {
    const char* op = LayerKindName(layer_.kind);
    problems_.push_back({layer_.spec_layer, field.empty() ? op : absl::StrCat(op, ".", field),
                         absl::StrCat(message...)});
    return false;
  }

  // 1 to kMostExtent.
  bool Extent(absl::string_view field, int64_t value);
  bool AtMostExtent(absl::string_view field, int64_t value);
  // Finite and at least 0.
  bool NotNegative(absl::string_view field, float value);
  // At least 0 and below 1.
  bool Fraction(absl::string_view field, float value);

  bool NeedsImage();
  // [features] or [tokens, features].
  bool NeedsRows();
  bool NeedsInputs(size_t least);

  // Sets the output, unless it has more elements than are possible.
  bool Output(Shape shape);
  bool OutputLikeInput(int64_t flops_per_element);
  // Adds a parameter, unless it has more elements than are possible.
  bool Weight(const char* name, Shape shape, double stddev);
  void Constant(const char* name, Shape shape, ParameterRole role, float value);

  // --- windows
  // ------------------------------------------------------------------------------------
  bool Convolution();
  bool ConvolutionWindow();
  bool Pool(v1::Pooling& settings);
  // Fills in the output from `window`. Fields are those that problems are told of.
  bool SlideWindow(int64_t channels, const char* height_field, const char* width_field);
  bool GlobalAveragePool();
  bool Flatten();

  // --- products
  // -----------------------------------------------------------------------------------
  bool FullyConnected();
  bool Embedding();
  bool Attention();

  // --- norms
  // --------------------------------------------------------------------------------------
  bool BatchNorm();
  bool LayerNorm();
  bool LocalResponseNorm();

  // --- the rest
  // -----------------------------------------------------------------------------------
  bool Dropout();
  bool Add();
  bool Concat();
  bool SoftmaxCrossEntropy();

  GraphLayer& layer_;
  std::vector<LayerProblem>& problems_;
};

// "makes [..], more than the N elements that are possible".
std::string TooManyElements(const Shape& shape, int64_t most);

// Elements of a shape, or something above `most` where there are more (without overflow).
// Requires: every extent is at most 2^31, most <= 2^40.
int64_t ElementsUpTo(const Shape& shape, int64_t most);

}  // namespace cadre
