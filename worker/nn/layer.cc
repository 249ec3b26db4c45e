#include "worker/nn/layer.h"

#include <utility>

#include "glog/logging.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {

bool LayerSetting::IsFirstAlong(const char* index) const {
  return comms.mesh().Coordinate(comms.rank(), layouts.axes(index)) == 0;
}

// A switch without default, so that the compiler reports a kind without a layer.
std::unique_ptr<Layer> MakeLayer(LayerSetting setting) {
  switch (setting.layer.kind) {
    case LayerKind::kConvolution:
    case LayerKind::kMaxPool:
    case LayerKind::kAveragePool:
    case LayerKind::kGlobalAveragePool:
      return MakeWindowLayer(std::move(setting));
    case LayerKind::kFullyConnected:
    case LayerKind::kEmbedding:
      return MakeDenseLayer(std::move(setting));
    case LayerKind::kRelu:
    case LayerKind::kGelu:
    case LayerKind::kSigmoid:
    case LayerKind::kTanh:
    case LayerKind::kRelu6:
    case LayerKind::kHardSwish:
    case LayerKind::kHardSigmoid:
    case LayerKind::kSilu:
    case LayerKind::kMultiply:
    case LayerKind::kDropout:
    case LayerKind::kAdd:
      return MakeElementwiseLayer(std::move(setting));
    case LayerKind::kBatchNorm:
    case LayerKind::kLayerNorm:
    case LayerKind::kLocalResponseNorm:
      return MakeNormLayer(std::move(setting));
    case LayerKind::kConcat:
    case LayerKind::kFlatten:
      return MakeShapeLayer(std::move(setting));
    case LayerKind::kToTokens:
    case LayerKind::kClassToken:
    case LayerKind::kTakeToken:
    case LayerKind::kBias:
      return MakeTokenLayer(std::move(setting));
    case LayerKind::kAttention:
      return MakeAttention(std::move(setting));
    case LayerKind::kLstm:
      return MakeLstm(std::move(setting));
    case LayerKind::kDotProductAttention:
      return MakeDotProductAttention(std::move(setting));
    case LayerKind::kSoftmaxCrossEntropy:
      break;
  }
  LOG(FATAL) << setting.layer.name << ": the network computes the loss";
}

}  // namespace cadre
