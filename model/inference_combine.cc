// Part of LayerInference: layers that combine inputs, drop elements, or end the model.
#include "model/inference.h"

namespace cadre {

bool LayerInference::Dropout() {
  return Fraction("rate", settings().dropout().rate()) && OutputLikeInput(1);
}

bool LayerInference::Add() {
  if (!NeedsInputs(2)) return false;
  for (const Shape& shape : layer_.input_shapes) {
    if (shape == in()) continue;
    return Problem("", "adds ", in().ToString(), " and ", shape.ToString(),
                   "; its inputs must have equal shapes");
  }
  return OutputLikeInput(std::ssize(layer_.inputs) - 1);
}

// Joins along the last dimension: channels of images, features of rows.
bool LayerInference::Concat() {
  if (!NeedsInputs(2)) return false;
  std::vector<int64_t> joined = in().dims();
  joined.back() = 0;
  for (const Shape& shape : layer_.input_shapes) {
    std::vector<int64_t> dims = shape.dims();
    const int64_t channels = dims.back();
    dims.back() = joined.back();
    if (dims != joined) {
      return Problem("", "concatenates ", in().ToString(), " and ", shape.ToString(),
                     "; its inputs may only differ in the last dimension");
    }
    joined.back() += channels;
  }
  return Output(Shape(std::move(joined)));
}

// Softmax and loss are one layer, so that its gradient is probability minus label, without a
// division by small probabilities.
bool LayerInference::SoftmaxCrossEntropy() {
  if (!Fraction("label_smoothing", settings().softmax_cross_entropy().label_smoothing())) {
    return false;
  }
  if (in().rank() == 3) {
    return Problem("", "requires [classes] or [tokens, classes]; its input is the image ",
                   in().ToString(),
                   "; put a fully_connected, global_average_pool or flatten before it");
  }
  if (const int64_t classes = in().dims().back(); classes < 2) {
    return Problem("", "takes ", classes, " features; classes must be at least 2");
  }
  layer_.flops = 5 * in().elements();
  return Output(Shape{1});
}

}  // namespace cadre
