#include "model/ops/layer.h"

namespace cadre {

const char* LayerKindName(LayerKind kind) {
  return v1::Layer::descriptor()->FindFieldByNumber(static_cast<int>(kind))->name().c_str();
}

bool HasPadding(const GraphLayer& layer) {
  return layer.kind == LayerKind::kAttention && layer.settings.attention().has_padding_token();
}

}  // namespace cadre
