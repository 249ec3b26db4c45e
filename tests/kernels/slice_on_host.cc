#include <algorithm>
#include <cmath>

#include "tests/kernels/cuda_rig.h"

namespace cadre {

void UpdateSliceOnHost(Backend& host, float rate, int64_t updates, const SliceUpdate& update,
                       std::span<const SliceSegment> segments, std::span<const float> g,
                       std::span<float> w, std::span<float> m, std::span<float> v) {
  if (update.loss != nullptr && !std::isfinite(*update.loss)) return;
  float scale = 1;
  if (update.squares != nullptr) {
    scale = std::min(1.0, update.clip_norm / (std::sqrt(*update.squares) + 1e-6));
  }
  for (const SliceSegment& segment : segments) {
    const auto part = [&segment](auto span) {
      return span.subspan(segment.begin, segment.end - segment.begin);
    };
    if (segment.statistic) {
      host.optimizer().DrawTowards(segment.momentum, part(g), part(w));
    } else if (update.rule == SliceUpdate::Rule::kAdamW) {
      AdamWStep step = update.adamw;
      step.rate = rate;
      step.gradient_scale = scale;
      if (!segment.decays) step.weight_decay = 0;
      step.correction1 = 1 - std::pow(double{step.beta1}, updates);
      step.correction2 = 1 - std::pow(double{step.beta2}, updates);
      host.optimizer().AdamW(step, part(g), part(w), part(m), part(v));
    } else {
      SgdStep step = update.sgd;
      step.rate = rate;
      step.gradient_scale = scale;
      if (!segment.decays) step.weight_decay = 0;
      host.optimizer().Sgd(step, part(g), part(w), part(v));
    }
  }
}

}  // namespace cadre
