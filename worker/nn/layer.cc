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
      return MakeConvolution(std::move(setting));
    case LayerKind::kMaxPool:
    case LayerKind::kAveragePool:
      return MakePooling(std::move(setting));
    case LayerKind::kGlobalAveragePool:
      return MakeGlobalAveragePool(std::move(setting));
    case LayerKind::kFullyConnected:
      return MakeFullyConnected(std::move(setting));
    case LayerKind::kRelu:
    case LayerKind::kGelu:
    case LayerKind::kSigmoid:
    case LayerKind::kTanh:
      return MakeActivation(std::move(setting));
    case LayerKind::kBatchNorm:
      return MakeBatchNorm(std::move(setting));
    case LayerKind::kLocalResponseNorm:
      return MakeLocalResponseNorm(std::move(setting));
    case LayerKind::kDropout:
      return MakeDropout(std::move(setting));
    case LayerKind::kAdd:
      return MakeAdd(std::move(setting));
    case LayerKind::kConcat:
      return MakeConcat(std::move(setting));
    case LayerKind::kFlatten:
      return MakeFlatten(std::move(setting));
    case LayerKind::kEmbedding:
      return MakeEmbedding(std::move(setting));
    case LayerKind::kLayerNorm:
      return MakeLayerNorm(std::move(setting));
    case LayerKind::kAttention:
      return MakeAttention(std::move(setting));
    case LayerKind::kSoftmaxCrossEntropy:
      break;
  }
  LOG(FATAL) << setting.layer.name << ": the network computes the loss";
}

}  // namespace cadre
