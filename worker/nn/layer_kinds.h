// The families of layers, one file each, and MakeLayer, which selects from them.
#pragma once

#include <memory>

#include "tensor/interval.h"
#include "tensor/values.h"
#include "worker/nn/layer.h"

namespace cadre {

// Requires: not a softmax_cross_entropy; the network computes the loss.
std::unique_ptr<Layer> MakeLayer(LayerSetting setting);

std::unique_ptr<Layer> MakeAttention(LayerSetting setting);
std::unique_ptr<Layer> MakeDenseLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeDotProductAttention(LayerSetting setting);
std::unique_ptr<Layer> MakeElementwiseLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeLstm(LayerSetting setting);
std::unique_ptr<Layer> MakeNormLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeSampledFullyConnected(LayerSetting setting);
std::unique_ptr<Layer> MakeShapeLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeTokenLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeWindowLayer(LayerSetting setting);

// An interval of a layer's saved or scratch memory. For an empty batch no memory is allocated, so
// empty intervals are not at their offsets.
inline Values Subspan(Values memory, const Interval& interval) {
  return interval.empty() ? memory.first(0) : memory.subspan(interval.begin, interval.size());
}
// Memory that has the type of the activations, but holds fp32 numbers.
inline FloatSpan Floats(Values memory) {
  return {static_cast<float*>(memory.data()), memory.bytes() / sizeof(float)};
}

}  // namespace cadre
