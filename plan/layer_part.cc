#include "plan/layer_part.h"

#include <algorithm>

namespace cadre {

void LayerPart::Split(absl::string_view index, int parts) {
  if (index == "samples") {
    samples = LargestPart(samples, parts);
  } else if (index == "height" || index == "tokens") {
    rows *= parts;
  } else if (index == "in") {
    ins *= parts;
  } else {
    outs *= parts;
  }
}

LayerPart PartOf(const LayerLayouts& layer, const Mesh& mesh, int64_t samples) {
  LayerPart part{.samples = samples};
  for (const IndexSplit& split : layer.splits) part.Split(split.index, mesh.Size(split.axes));
  return part;
}

LayerPartKey KeyOf(const v1::LayerTime& time) {
  // 0 means 1.
  const auto parts = [](uint32_t count) -> int { return std::max(1U, count); };
  return {time.layer(),
          {time.samples(), parts(time.rows()), parts(time.outs()), parts(time.ins())}};
}

v1::LayerTime TimeOf(const LayerPartKey& key) {
  v1::LayerTime time;
  time.set_layer(key.layer);
  time.set_samples(key.part.samples);
  time.set_rows(key.part.rows);
  time.set_outs(key.part.outs);
  time.set_ins(key.part.ins);
  return time;
}

}  // namespace cadre
