#include "spec/layer_part.h"

#include <algorithm>

namespace cadre {

LayerPart PartOf(const LayerLayouts& layer, const Mesh& mesh, int64_t samples) {
  LayerPart part{.samples = samples};
  for (const IndexSplit& split : layer.splits) {
    const int parts = mesh.Size(split.axes);
    if (split.index == "samples") {
      part.samples = (samples + parts - 1) / parts;
    } else if (split.index == "height" || split.index == "tokens") {
      part.rows *= parts;
    } else if (split.index == "in") {
      part.ins *= parts;
    } else {
      part.outs *= parts;
    }
  }
  return part;
}

LayerPartKey KeyOf(const v1::LayerTime& time) {
  // 0 means 1.
  const auto parts = [](uint32_t count) { return static_cast<int>(std::max(1U, count)); };
  return {time.layer(),
          {time.samples(), parts(time.rows()), parts(time.outs()), parts(time.ins())}};
}

v1::LayerTime TimeOf(const LayerPartKey& key) {
  v1::LayerTime time;
  time.set_layer(key.layer);
  time.set_samples(static_cast<uint32_t>(key.part.samples));
  time.set_rows(static_cast<uint32_t>(key.part.rows));
  time.set_outs(static_cast<uint32_t>(key.part.outs));
  time.set_ins(static_cast<uint32_t>(key.part.ins));
  return time;
}

}  // namespace cadre
