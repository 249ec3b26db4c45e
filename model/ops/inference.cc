// Every check stops at the first problem of a layer, because later ones would follow from it. A
// problem names the field of the settings, or no field if the inputs are invalid. Extents are
// checked before they are multiplied: with at most kMaxExtent per dimension and ElementsUpTo for
// products, no model overflows 64 bits.
//
// Cost: a multiply-add counts as two operations.
#include "model/ops/inference.h"

namespace cadre {

int64_t WindowsAlong(int64_t in, int64_t padding, int64_t reach, int64_t stride, bool ceil) {
  const int64_t room = in + 2 * padding - reach;
  if (room < 0) return 0;
  const int64_t whole = room / stride + 1;
  const bool another = ceil && room % stride != 0 && whole * stride < in + padding;
  return another ? whole + 1 : whole;
}

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

bool LayerInference::NeedsRows() {
  if (in().rank() == 1 || in().rank() == 2) return true;
  return Problem("", "requires [features] or [tokens, features]; its input is the image ",
                 in().ToString());
}

bool LayerInference::NeedsSequence() {
  if (in().rank() == 2) return true;
  return Problem("", "requires a sequence [tokens, features]; its input is ", in().ToString());
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

bool LayerInference::Flops(std::initializer_list<int64_t> factors) {
  layer_.flops = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(layer_.flops, factor, &layer_.flops)) {
      return Problem("", "takes more operations for a sample than can be counted");
    }
  }
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
