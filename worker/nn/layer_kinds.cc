#include "worker/nn/layer_kinds.h"

#include <utility>

#include "glog/logging.h"

namespace cadre {

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
    case LayerKind::kRelu6:
    case LayerKind::kGelu:
    case LayerKind::kSigmoid:
    case LayerKind::kTanh:
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
    // The network computes the loss; models that have been read contain no `use`.
    case LayerKind::kSoftmaxCrossEntropy:
    case LayerKind::kUse:
    case LayerKind::OP_NOT_SET:
      break;
  }
  LOG(FATAL) << setting.layer.name << ": no layer computes " << LayerKindName(setting.layer.kind);
}

}  // namespace cadre
