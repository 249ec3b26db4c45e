// The rules that the layers share: limits, inputs, outputs and parameters. The rules of each kind
// of layer are in inference_combine.cc, inference_norm.cc, inference_product.cc and
// inference_window.cc.
//
// Every check stops at the first problem of a layer, because later ones would follow from it. A
// problem names the field of the settings, or no field if the inputs are invalid. Extents are
// checked before they are multiplied: with at most kMaxExtent per dimension and ElementsUpTo for
// products, no model overflows 64 bits.
#include "model/inference.h"

#include <cmath>

namespace cadre {

std::string TooManyElements(const Shape& shape, int64_t max) {
  return absl::StrCat("makes ", shape.ToString(), ", more than the ", max,
                      " elements that are allowed");
}

// Stops multiplying above the limit; the remaining extents only matter if one of them is 0.
int64_t ElementsUpTo(const Shape& shape, int64_t max) {
  int64_t elements = 1;
  for (const int64_t extent : shape.dims()) {
    if (extent == 0) return 0;
    if (elements > max) continue;
    elements *= extent;
  }
  return elements;
}

bool LayerInference::Run() {
  switch (layer_.kind) {
    case LayerKind::kConvolution:
      return Convolution();
    case LayerKind::kMaxPool:
      return Pool(*settings().mutable_max_pool());
    case LayerKind::kAveragePool:
      return Pool(*settings().mutable_average_pool());
    case LayerKind::kGlobalAveragePool:
      return GlobalAveragePool();
    case LayerKind::kFullyConnected:
      return FullyConnected();
    case LayerKind::kRelu:
      return OutputLikeInput(1);
    case LayerKind::kGelu:
      return OutputLikeInput(8);
    case LayerKind::kSigmoid:
    case LayerKind::kTanh:
      return OutputLikeInput(4);
    case LayerKind::kBatchNorm:
      return BatchNorm();
    case LayerKind::kLocalResponseNorm:
      return LocalResponseNorm();
    case LayerKind::kDropout:
      return Dropout();
    case LayerKind::kAdd:
      return Add();
    case LayerKind::kConcat:
      return Concat();
    case LayerKind::kFlatten:
      return Flatten();
    case LayerKind::kEmbedding:
      return Embedding();
    case LayerKind::kLayerNorm:
      return LayerNorm();
    case LayerKind::kAttention:
      return Attention();
    case LayerKind::kSoftmaxCrossEntropy:
      return SoftmaxCrossEntropy();
  }
  return false;
}

bool LayerInference::Extent(absl::string_view field, int64_t value) {
  if (value >= 1 && value <= kMaxExtent) return true;
  return Problem(field, "is ", value, "; it must be between 1 and ", kMaxExtent);
}

bool LayerInference::AtMostExtent(absl::string_view field, int64_t value) {
  return value <= kMaxExtent || Problem(field, "is ", value, "; it must be at most ", kMaxExtent);
}

bool LayerInference::NotNegative(absl::string_view field, float value) {
  if (std::isfinite(value) && value >= 0.0F) return true;
  return Problem(field, "is ", value, "; it must be a number of at least 0");
}

bool LayerInference::Fraction(absl::string_view field, float value) {
  if (value >= 0.0F && value < 1.0F) return true;
  return Problem(field, "is ", value, "; it must be at least 0 and below 1");
}

bool LayerInference::NeedsImage() {
  if (in().rank() == 3) return true;
  return Problem("", "requires an image [height, width, channels]; its input is ", in().ToString());
}

// Products and norms of features do not accept images.
bool LayerInference::NeedsRows() {
  if (in().rank() == 1 || in().rank() == 2) return true;
  return Problem("", "requires [features] or [tokens, features]; its input is the image ",
                 in().ToString());
}

bool LayerInference::NeedsInputs(size_t least) {
  if (layer_.inputs.size() >= least) return true;
  return Problem("", "takes ", layer_.inputs.size(), " input", layer_.inputs.size() == 1 ? "" : "s",
                 "; name at least ", least);
}

bool LayerInference::Output(Shape shape) {
  if (ElementsUpTo(shape, kMaxElements) > kMaxElements) {
    return Problem("", TooManyElements(shape, kMaxElements));
  }
  layer_.output = std::move(shape);
  return true;
}

bool LayerInference::OutputLikeInput(int64_t flops_per_element) {
  layer_.output = in();
  layer_.flops = flops_per_element * in().elements();
  return true;
}

bool LayerInference::Weight(const char* name, Shape shape, double stddev) {
  if (ElementsUpTo(shape, kMaxWeights) > kMaxWeights) {
    return Problem("", TooManyElements(shape, kMaxWeights));
  }
  layer_.parameters.push_back({.name = name,
                               .shape = std::move(shape),
                               .role = ParameterRole::kWeight,
                               .initial_stddev = stddev});
  return true;
}

void LayerInference::Constant(const char* name, Shape shape, ParameterRole role, float value) {
  layer_.parameters.push_back(
      {.name = name, .shape = std::move(shape), .role = role, .initial_value = value});
}

}  // namespace cadre
