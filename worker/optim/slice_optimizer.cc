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
      size_(static_cast<size_t>(bucket.slice_end() - bucket.slice_begin())) {
  CHECK_EQ(statistic_momenta.size(), index.parameters().size());
  for (size_t i = 0; i < OptimizerStateNames(optimizer).size(); ++i) {
    state_.emplace_back(kernels.device(), size_, "optimiser's state");
  }
  MakeSegments(index, statistic_momenta, bucket);
  if (!kernels.device().is_host()) MakeTables();
}

void SliceOptimizer::MakeSegments(const ParameterIndex& index,
                                  std::span<const float> statistic_momenta,
                                  const BucketOwnership& bucket) {
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
         .decays = !statistic && (role == ParameterRole::kWeight || optimizer_.decay_all()),
         .statistic = statistic,
         .momentum = statistic_momenta[static_cast<size_t>(piece.parameter)]});
  }
}

void SliceOptimizer::MakeTables() {
  std::vector<SliceSegment> all;
  for (const Segment& segment : segments_) {
    const auto begin = static_cast<int64_t>(segment.begin);
    const auto count = static_cast<int64_t>(segment.count);
    const SliceSegment made{.begin = begin,
                            .end = begin + count,
                            .decays = segment.decays,
                            .statistic = segment.statistic,
                            .momentum = segment.momentum};
    if (!optimizer_.has_lars()) {
      // Neighbours that are treated alike are one.
      if (!all.empty() && all.back().end == begin && all.back().decays == made.decays &&
          all.back().statistic == made.statistic && all.back().momentum == made.momentum) {
        all.back().end = made.end;
      } else {
        all.push_back(made);
      }
    } else if (segment.statistic) {
      SliceSegment alone = made;
      alone.begin = 0;
      alone.end = count;
      tables_.push_back({segment.begin, segment.begin + segment.count,
                         kernels_->MakeSegmentTable(std::span(&alone, 1))});
    }
  }
  if (!all.empty()) tables_.push_back({0, size_, kernels_->MakeSegmentTable(all)});
}

void SliceOptimizer::DrawTowards(size_t begin, size_t end, float momentum,
                                 std::span<const float> batch, std::span<float> running) {
  if (kernels_->device().is_host()) {
    for (size_t i = begin; i < end; ++i) running[i] += momentum * (batch[i] - running[i]);
    return;
  }
  const auto table = std::find_if(tables_.begin(), tables_.end(),
                                  [begin](const Table& t) { return t.begin == begin; });
  CHECK(table != tables_.end() && table->end == end) << "a device updates whole slices";
  kernels_->UpdateSlice({}, *table->segments, batch.subspan(begin, end - begin),
                        running.subspan(begin, end - begin), {},
                        state(0).subspan(begin, end - begin));
}

void SliceOptimizer::AddNormsLater(std::span<const float> gradients, std::span<const float> weights,
                                   std::span<double> sums) {
  CHECK_EQ(gradients.size(), size_);
  if (sums.empty()) return;
  const size_t parameters = sums.size() / 2;
  size_t begin = 0;
  size_t end = 0;
  const auto add_run = [&] {
    if (begin < end) {
      kernels_->AddSumOfSquares(gradients.subspan(begin, end - begin), sums.data());
    }
  };
  for (const Segment& segment : segments_) {
    if (segment.statistic) continue;
    const size_t last = segment.begin + segment.count;
    if (optimizer_.has_lars()) {
      const auto p = static_cast<size_t>(segment.parameter);
      kernels_->AddSumOfSquares(gradients.subspan(segment.begin, segment.count), &sums[p]);
      kernels_->AddSumOfSquares(weights.subspan(segment.begin, segment.count),
                                &sums[parameters + p]);
    } else if (segment.begin == end) {
      end = last;
    } else {
      add_run();
      begin = segment.begin;
      end = last;
    }
  }
  add_run();
}

void SliceOptimizer::UpdateLater(const Guard& guard, std::span<const float> gradients,
                                 std::span<float> weights) {
  CHECK_EQ(gradients.size(), size_);
  CHECK_EQ(weights.size(), size_);
  CHECK(!optimizer_.has_lars());
  SliceUpdate update{
      .loss = guard.loss, .squares = guard.squares, .clip_norm = optimizer_.clip_norm()};
  // What decays is said by the segments.
  const Segment decaying{.decays = true};
  std::span<float> m;
  std::span<float> v = state(0);
  if (optimizer_.has_adamw()) {
    update.rule = SliceUpdate::Rule::kAdamW;
    update.adamw = AdamWFor(decaying, 0, 1);
    m = state(0);
    v = state(1);
  } else {
    update.sgd = SgdFor(decaying, 0, 1);
  }
  for (const Table& table : tables_) {
    kernels_->UpdateSlice(update, *table.segments, gradients, weights, m, v);
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
      DrawTowards(first, last, segment.momentum, gradients, weights);
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
