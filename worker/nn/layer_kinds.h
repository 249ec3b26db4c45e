// The families of layers that MakeLayer selects from. Internal to worker/nn.
#pragma once

#include <memory>

#include "worker/nn/layer.h"

namespace cadre {

// window_layers.cc
std::unique_ptr<Layer> MakeConvolution(LayerSetting setting);
std::unique_ptr<Layer> MakePooling(LayerSetting setting);
std::unique_ptr<Layer> MakeGlobalAveragePool(LayerSetting setting);
// dense_layers.cc
std::unique_ptr<Layer> MakeFullyConnected(LayerSetting setting);
std::unique_ptr<Layer> MakeEmbedding(LayerSetting setting);
// attention_layer.cc
std::unique_ptr<Layer> MakeAttention(LayerSetting setting);
// norm_layers.cc
std::unique_ptr<Layer> MakeBatchNorm(LayerSetting setting);
std::unique_ptr<Layer> MakeLayerNorm(LayerSetting setting);
std::unique_ptr<Layer> MakeLocalResponseNorm(LayerSetting setting);
// elementwise_layers.cc
std::unique_ptr<Layer> MakeActivation(LayerSetting setting);
std::unique_ptr<Layer> MakeDropout(LayerSetting setting);
std::unique_ptr<Layer> MakeAdd(LayerSetting setting);
// shape_layers.cc
std::unique_ptr<Layer> MakeConcat(LayerSetting setting);
std::unique_ptr<Layer> MakeFlatten(LayerSetting setting);

}  // namespace cadre
