#include "worker/optim/slice_optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glog/logging.h"
#include "spec/optimizer_state.h"

namespace cadre {
namespace {

constexpr float kBeta1 = 0.9F;
constexpr float kBeta2 = 0.999F;
constexpr float kEpsilon = 1e-8F;
constexpr float kTrust = 0.001F;

float Or(float value, float if_zero) { return value == 0 ? if_zero : value; }

void DrawTowards(std::span<const float> batch, float momentum, std::span<float> running) {
  for (size_t i = 0; i < running.size(); ++i) running[i] += momentum * (batch[i] - running[i]);
}

}  // namespace

std::vector<float> StatisticMomenta(const Graph& graph, const ParameterIndex& index) {
  std::vector<float> momenta;
  for (const Parameter& parameter : index.parameters()) {
    momenta.push_back(
        IsStatistic(parameter.role) ? graph[parameter.layer].settings.batch_norm().momentum() : 0);
  }
  return momenta;
}

SliceOptimizer::SliceOptimizer(Kernels& kernels, const v1::Optimizer& optimizer,
                               const ParameterIndex& index,
                               std::span<const float> statistic_momenta,
                               const BucketOwnership& bucket)
    : kernels_(&kernels),
      optimizer_(optimizer),
      size_(static_cast<size_t>(bucket.slice_end() - bucket.slice_begin())),
      state_(OptimizerStateNames(optimizer).size(), std::vector<float>(size_, 0.0F)) {
  CHECK_EQ(statistic_momenta.size(), index.parameters().size());
  for (const OwnedPiece& piece : bucket.owned) {
    const auto begin = static_cast<size_t>(piece.offset - bucket.slice_begin());
    const auto count = static_cast<size_t>(piece.flat.size());
    // A shard that is split along an inner dimension has a piece for every run of its rows; in the
    // buffer they touch.
    if (!segments_.empty() && segments_.back().parameter == piece.parameter &&
        segments_.back().begin + segments_.back().count == begin) {
      segments_.back().count += count;
      continue;
    }
    const ParameterRole role = index[piece.parameter].role;
    const bool statistic = IsStatistic(role);
    segments_.push_back(
        {.parameter = piece.parameter,
         .begin = begin,
         .count = count,
         .decays = !statistic && (role == ParameterRole::kWeight || optimizer.decay_all()),
         .statistic = statistic,
         .momentum = statistic_momenta[static_cast<size_t>(piece.parameter)]});
  }
}

void SliceOptimizer::AddNorms(std::span<const float> gradients, std::span<const float> weights,
                              StepNorms& norms) const {
  CHECK_EQ(gradients.size(), size_);
  CHECK_EQ(weights.size(), size_);
  if (norms.sums().empty()) return;
  for (const Segment& segment : segments_) {
    if (segment.statistic) continue;
    const double of_gradients =
        kernels_->SumOfSquares(gradients.subspan(segment.begin, segment.count));
    const double of_weights =
        norms.by_tensor() ? kernels_->SumOfSquares(weights.subspan(segment.begin, segment.count))
                          : 0;
    norms.Add(segment.parameter, of_gradients, of_weights);
  }
}

void SliceOptimizer::UpdatePart(size_t begin, size_t end, float rate, const StepNorms& norms,
                                std::span<const float> gradients, std::span<float> weights) {
  CHECK_EQ(gradients.size(), size_);
  CHECK_EQ(weights.size(), size_);
  CHECK(begin <= end && end <= size_) << begin << " to " << end << " of " << size_;
  const double scale = norms.GradientScale();
  for (const Segment& segment : segments_) {
    const size_t first = std::max(begin, segment.begin);
    const size_t last = std::min(end, segment.begin + segment.count);
    if (first >= last) continue;
    const auto part = [&](auto span) { return span.subspan(first, last - first); };
    const auto g = part(gradients);
    const auto w = part(weights);
    if (segment.statistic) {
      DrawTowards(g, segment.momentum, w);
    } else if (optimizer_.has_adamw()) {
      kernels_->AdamW(AdamWFor(segment, rate, scale), g, w, part(state(0)), part(state(1)));
    } else if (optimizer_.has_lars()) {
      kernels_->Sgd(LarsFor(segment, rate, scale, norms), g, w, part(state(0)));
    } else {
      kernels_->Sgd(SgdFor(segment, rate, scale), g, w, part(state(0)));
    }
  }
}

SgdStep SliceOptimizer::SgdFor(const Segment& segment, float rate, double scale) const {
  const v1::Sgd& sgd = optimizer_.sgd();
  return {.rate = rate,
          .momentum = sgd.momentum(),
          .weight_decay = segment.decays ? sgd.weight_decay() : 0,
          .nesterov = sgd.nesterov(),
          .gradient_scale = static_cast<float>(scale)};
}

// The paper's local rate stands inside the momentum, v = momentum * v + local * (g + decay * w), so
// that a tensor's past counts with the ratios of its time.
SgdStep SliceOptimizer::LarsFor(const Segment& segment, float rate, double scale,
                                const StepNorms& norms) const {
  const v1::Lars& lars = optimizer_.lars();
  SgdStep step{
      .rate = rate, .momentum = lars.momentum(), .gradient_scale = static_cast<float>(scale)};
  if (!segment.decays) return step;
  const double w = norms.WeightNorm(segment.parameter);
  const double g = norms.GradientNorm(segment.parameter) * scale;
  // A tensor of zeros has no norm to go by, and would stay zero for ever.
  double local = 1;
  if (w > 0 && g > 0) local = Or(lars.trust(), kTrust) * w / (g + lars.weight_decay() * w);
  step.weight_decay = static_cast<float>(local * lars.weight_decay());
  step.gradient_scale = static_cast<float>(local * scale);
  return step;
}

AdamWStep SliceOptimizer::AdamWFor(const Segment& segment, float rate, double scale) const {
  const v1::AdamW& adamw = optimizer_.adamw();
  AdamWStep step{.rate = rate,
                 .beta1 = Or(adamw.beta1(), kBeta1),
                 .beta2 = Or(adamw.beta2(), kBeta2),
                 .epsilon = Or(adamw.epsilon(), kEpsilon),
                 .weight_decay = segment.decays ? adamw.weight_decay() : 0,
                 .gradient_scale = static_cast<float>(scale)};
  const auto t = static_cast<double>(updates_);
  step.correction1 = 1 - std::pow(static_cast<double>(step.beta1), t);
  step.correction2 = 1 - std::pow(static_cast<double>(step.beta2), t);
  return step;
}

int64_t SliceOptimizer::state_bytes() const {
  return static_cast<int64_t>(state_.size() * size_ * sizeof(float));
}

}  // namespace cadre
