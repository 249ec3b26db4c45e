#include "worker/optim/slice_optimizer.h"

#include <utility>

#include "glog/logging.h"

namespace cadre {

SliceOptimizer::SliceOptimizer(Kernels& kernels, const v1::Optimizer& optimizer,
                               std::vector<Segment> segments)
    : kernels_(kernels), sgd_(optimizer.sgd()), segments_(std::move(segments)) {
  const int64_t size = segments_.empty() ? 0 : segments_.back().end;
  velocity_.resize(static_cast<size_t>(size), 0.0F);
}

void SliceOptimizer::Update(float rate, std::span<const float> gradient, std::span<float> weights) {
  CHECK_EQ(gradient.size(), velocity_.size());
  CHECK_EQ(weights.size(), velocity_.size());
  for (const Segment& segment : segments_) {
    const auto begin = static_cast<size_t>(segment.begin);
    const auto count = static_cast<size_t>(segment.end - segment.begin);
    const SgdStep step{.rate = rate,
                       .momentum = sgd_.momentum(),
                       .weight_decay = segment.decays ? sgd_.weight_decay() : 0.0F};
    kernels_.Sgd(step, gradient.subspan(begin, count), weights.subspan(begin, count),
                 std::span(velocity_).subspan(begin, count));
  }
}

}  // namespace cadre
