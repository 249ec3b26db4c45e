#include "worker/nn/layer.h"

#include <utility>

#include "glog/logging.h"
#include "model/ops/operation.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {

bool LayerSetting::IsFirstAlong(const char* index) const {
  return comms.mesh().Coordinate(comms.rank(), layouts.axes(index)) == 0;
}

std::unique_ptr<Layer> MakeLayer(LayerSetting setting) {
  if (Describe(setting.layer.kind).is_activation) return MakeElementwiseLayer(std::move(setting));
  switch (setting.layer.kind) {
    case LayerKind::kConvolution:
    case LayerKind::kMaxPool:
    case LayerKind::kAveragePool:
    case LayerKind::kGlobalAveragePool:
      return MakeWindowLayer(std::move(setting));
    case LayerKind::kFullyConnected:
    case LayerKind::kEmbedding:
      return MakeDenseLayer(std::move(setting));
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
      LOG(FATAL) << setting.layer.name << ": the network computes the loss";
    default:
      LOG(FATAL) << setting.layer.name << ": no layer computes "
                 << LayerKindName(setting.layer.kind);
  }
}

}  // namespace cadre
