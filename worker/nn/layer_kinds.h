// The families of layers that MakeLayer selects from, one file each. Internal to worker/nn.
#pragma once

#include <memory>

#include "worker/nn/layer.h"

namespace cadre {

std::unique_ptr<Layer> MakeAttention(LayerSetting setting);
std::unique_ptr<Layer> MakeDenseLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeDotProductAttention(LayerSetting setting);
std::unique_ptr<Layer> MakeElementwiseLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeLstm(LayerSetting setting);
std::unique_ptr<Layer> MakeNormLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeShapeLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeTokenLayer(LayerSetting setting);
std::unique_ptr<Layer> MakeWindowLayer(LayerSetting setting);

}  // namespace cadre
