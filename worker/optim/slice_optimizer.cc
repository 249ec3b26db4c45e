// The sharded update.
//
// After the reduce-scatter a rank holds the summed gradients of one interval of each bucket. It
// updates that interval with the only copy of the optimizer's state, and the all-gather distributes
// the result: ZeRO stage 1 (Rajbhandari et al., SC 2020, section 5.1). State is neither replicated
// within a group nor averaged between groups.
//
// Every element is updated independently; whatever depends on the whole model (the clipping factor,
// LARS's norms) is an argument (step_norms.h). So the result does not depend on how a model is
// divided into buckets, slices and chunks; the equivalence tests compare such divisions. A slice is
// cut into segments, because it covers parts of several parameters, which differ in weight decay.
//
// Rules: SGD with momentum and Nesterov's variant as PyTorch defines them; AdamW (Loshchilov and
// Hutter, ICLR 2019, algorithm 2); LARS (You, Gitman and Ginsburg, 2017, algorithm 1).
//
// On the host an update is made interval by interval, right after the reduction of each chunk. On a
// device one kernel updates the whole slice (SliceKernels::UpdateSlice). It reads the group's loss
// and norms from device memory, so that the host enqueues it before either is known; a loss that is
// not finite makes it a no-op.
//
// Each element has made updates_ updates since its state was zero, less those before its segment's
// state began anew (`before`), because its rank was lost. AdamW divides by 1 - beta^updates, so an
// element with a state of zero and the count of the others would take steps several times too long.
//
// Cost: one pass over the slice. State: 4 bytes per owned element for SGD and LARS, 8 for AdamW.
// Limits: the host computes LARS's rates, which are per tensor; so on a device the host waits for
// the norms once per step and calls the kernels tensor by tensor.
#include "worker/optim/slice_optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glog/logging.h"
#include "model/optimizer_state.h"

namespace cadre {
namespace {

constexpr float kBeta1 = 0.9F;
constexpr float kBeta2 = 0.999F;
constexpr float kEpsilon = 1e-8F;
constexpr float kTrust = 0.001F;

}  // namespace

std::vector<float> StatisticMomenta(const Graph& graph, const ParameterIndex& index) {
  std::vector<float> momenta;
  for (const Parameter& parameter : index.parameters()) {
    momenta.push_back(
        IsStatistic(parameter.role) ? graph[parameter.layer].settings.batch_norm().momentum() : 0);
  }
  return momenta;
}

SliceOptimizer::SliceOptimizer(Backend& kernels, const v1::Optimizer& optimizer,
                               const ParameterIndex& index,
                               std::span<const float> statistic_momenta,
                               const BucketOwnership& bucket)
    : kernels_(&kernels), optimizer_(optimizer), size_(bucket.slice_end() - bucket.slice_begin()) {
  CHECK_EQ(statistic_momenta.size(), index.parameters().size());
  for (size_t i = 0; i < OptimizerStateNames(optimizer).size(); ++i) {
    state_.emplace_back(kernels.device(), size_, "optimizer's state");
  }
  MakeSegments(index, statistic_momenta, bucket);
  MakeTable();
}

void SliceOptimizer::MakeSegments(const ParameterIndex& index,
                                  std::span<const float> statistic_momenta,
                                  const BucketOwnership& bucket) {
  for (const OwnedInterval& owned : bucket.owned) {
    const int64_t begin = owned.offset - bucket.slice_begin();
    const int64_t end = begin + owned.positions.size();
    // A parameter that is split along an inner dimension has one entry for each run of its rows,
    // but the runs are contiguous in the buffer.
    if (!segments_.empty() && segments_.back().parameter == owned.parameter &&
        segments_.back().elements.end == begin) {
      segments_.back().elements.end = end;
      continue;
    }
    const ParameterRole role = index[owned.parameter].role;
    const bool statistic = IsStatistic(role);
    segments_.push_back(
        {.parameter = owned.parameter,
         .elements = {begin, end},
         .decays = !statistic && (role == ParameterRole::kWeight || optimizer_.decay_all()),
         .statistic = statistic,
         .momentum = statistic_momenta[owned.parameter]});
  }
}

std::vector<SliceOptimizer::Counted> SliceOptimizer::CountedUpdates() const {
  std::vector<Counted> counted;
  for (const Segment& segment : segments_) {
    const int64_t updates = updates_ - segment.before;
    if (!counted.empty() && counted.back().updates == updates) {
      counted.back().elements.end = segment.elements.end;
    } else {
      counted.push_back({segment.elements, updates});
    }
  }
  return counted;
}

void SliceOptimizer::SetUpdates(int64_t updates, std::span<const Counted> fewer) {
  updates_ = updates;
  std::vector<Segment> segments;
  const auto append = [&](const Segment& whole, Interval elements, int64_t before) {
    if (elements.empty()) return;
    const bool continues = !segments.empty() && segments.back().parameter == whole.parameter &&
                           segments.back().before == before &&
                           segments.back().elements.end == elements.begin;
    if (continues) {
      segments.back().elements.end = elements.end;
      return;
    }
    segments.push_back(whole);
    segments.back().elements = elements;
    segments.back().before = before;
  };
  for (const Segment& whole : segments_) {
    int64_t next = whole.elements.begin;
    auto part = std::partition_point(
        fewer.begin(), fewer.end(), [&](const Counted& each) { return each.elements.end <= next; });
    for (; part != fewer.end() && part->elements.begin < whole.elements.end; ++part) {
      const Interval common = Intersect(part->elements, whole.elements);
      append(whole, {next, common.begin}, 0);
      append(whole, common, updates - part->updates);
      next = common.end;
    }
    append(whole, {next, whole.elements.end}, 0);
  }
  const bool same = std::equal(segments.begin(), segments.end(), segments_.begin(), segments_.end(),
                               [](const Segment& a, const Segment& b) {
                                 return a.elements == b.elements && a.before == b.before;
                               });
  segments_ = std::move(segments);
  if (!same) MakeTable();
}

void SliceOptimizer::MakeTable() {
  if (kernels_->slices() == nullptr || optimizer_.has_lars()) return;
  std::vector<SliceSegment> all;
  for (const Segment& segment : segments_) {
    const auto [begin, end] = segment.elements;
    // Adjacent segments with equal rules are merged.
    if (!all.empty() && all.back().end == begin && all.back().decays == segment.decays &&
        all.back().statistic == segment.statistic && all.back().momentum == segment.momentum &&
        all.back().before == segment.before) {
      all.back().end = end;
    } else {
      all.push_back({.begin = begin,
                     .end = end,
                     .decays = segment.decays,
                     .statistic = segment.statistic,
                     .momentum = segment.momentum,
                     .before = segment.before});
    }
  }
  if (!all.empty()) table_ = kernels_->slices()->MakeSegmentTable(all);
}

void SliceOptimizer::AddNormsAsync(std::span<const float> gradients, std::span<const float> weights,
                                   std::span<double> sums) {
  CHECK_EQ(std::ssize(gradients), size_);
  if (sums.empty()) return;
  const int64_t parameters = std::ssize(sums) / 2;
  const auto add = [&](std::span<const float> values, Interval run, double* sum) {
    if (!run.empty())
      kernels_->slices()->AddSumOfSquares(values.subspan(run.begin, run.size()), sum);
  };
  // One kernel per run of adjacent segments, because clipping needs only one sum.
  Interval run;
  for (const Segment& segment : segments_) {
    if (segment.statistic) continue;
    const Interval& elements = segment.elements;
    if (optimizer_.has_lars()) {
      add(gradients, elements, &sums[segment.parameter]);
      add(weights, elements, &sums[parameters + segment.parameter]);
    } else if (elements.begin == run.end) {
      run.end = elements.end;
    } else {
      add(gradients, run, sums.data());
      run = elements;
    }
  }
  add(gradients, run, sums.data());
}

void SliceOptimizer::UpdateAsync(const Guard& guard, std::span<const float> gradients,
                                 std::span<float> weights) {
  CHECK_EQ(std::ssize(gradients), size_);
  CHECK_EQ(std::ssize(weights), size_);
  CHECK(!optimizer_.has_lars());
  SliceUpdate update{
      .loss = guard.loss, .squares = guard.squares, .clip_norm = optimizer_.clip_norm()};
  // The segments determine which elements decay.
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
  if (table_ != nullptr) kernels_->slices()->UpdateSlice(update, *table_, gradients, weights, m, v);
}

void SliceOptimizer::AddNorms(std::span<const float> gradients, std::span<const float> weights,
                              StepNorms& norms) const {
  CHECK_EQ(std::ssize(gradients), size_);
  CHECK_EQ(std::ssize(weights), size_);
  if (norms.sums().empty()) return;
  for (const Segment& segment : segments_) {
    if (segment.statistic) continue;
    const auto squares = [&](std::span<const float> values) {
      const Interval& elements = segment.elements;
      return kernels_->optimizer().SumOfSquares(values.subspan(elements.begin, elements.size()));
    };
    const double of_gradients = squares(gradients);
    const double of_weights = norms.by_tensor() ? squares(weights) : 0;
    norms.Add(segment.parameter, of_gradients, of_weights);
  }
}

void SliceOptimizer::UpdatePart(Interval part, float rate, const StepNorms& norms,
                                std::span<const float> gradients, std::span<float> weights) {
  CHECK_EQ(std::ssize(gradients), size_);
  CHECK_EQ(std::ssize(weights), size_);
  CHECK(part.size() >= 0 && Interval({0, size_}).contains(part)) << part.begin << " " << part.end;
  const double scale = norms.GradientScale();
  for (const Segment& segment : segments_) {
    const Interval common = Intersect(part, segment.elements);
    if (common.empty()) continue;
    const auto within = [&](auto span) { return span.subspan(common.begin, common.size()); };
    const auto g = within(gradients);
    const auto w = within(weights);
    if (segment.statistic) {
      kernels_->optimizer().DrawTowards(segment.momentum, g, w);
    } else if (optimizer_.has_adamw()) {
      kernels_->optimizer().AdamW(AdamWFor(segment, rate, scale), g, w, within(state(0)),
                                  within(state(1)));
    } else if (optimizer_.has_lars()) {
      kernels_->optimizer().Sgd(LarsFor(segment, rate, scale, norms), g, w, within(state(0)));
    } else {
      kernels_->optimizer().Sgd(SgdFor(segment, rate, scale), g, w, within(state(0)));
    }
  }
}

SgdStep SliceOptimizer::SgdFor(const Segment& segment, float rate, float scale) const {
  const v1::Sgd& sgd = optimizer_.sgd();
  return {.rate = rate,
          .momentum = sgd.momentum(),
          .weight_decay = segment.decays ? sgd.weight_decay() : 0,
          .nesterov = sgd.nesterov(),
          .gradient_scale = scale};
}

// As in the paper, the local rate is inside the momentum, v = momentum * v + local * (g + decay *
// w), so that past gradients keep the local rate of their own step.
SgdStep SliceOptimizer::LarsFor(const Segment& segment, float rate, double scale,
                                const StepNorms& norms) const {
  const v1::Lars& lars = optimizer_.lars();
  SgdStep step{.rate = rate, .momentum = lars.momentum()};
  step.gradient_scale = scale;
  if (!segment.decays) return step;
  const double w = norms.WeightNorm(segment.parameter);
  const double g = norms.GradientNorm(segment.parameter) * scale;
  // A tensor of zeros has no usable norm and would stay zero permanently.
  double local = 1;
  if (w > 0 && g > 0)
    local = (lars.has_trust() ? lars.trust() : kTrust) * w / (g + lars.weight_decay() * w);
  step.weight_decay = local * lars.weight_decay();
  step.gradient_scale = local * scale;
  return step;
}

AdamWStep SliceOptimizer::AdamWFor(const Segment& segment, float rate, float scale) const {
  const v1::AdamW& adamw = optimizer_.adamw();
  AdamWStep step{.rate = rate,
                 .beta1 = adamw.has_beta1() ? adamw.beta1() : kBeta1,
                 .beta2 = adamw.has_beta2() ? adamw.beta2() : kBeta2,
                 .epsilon = adamw.has_epsilon() ? adamw.epsilon() : kEpsilon,
                 .weight_decay = segment.decays ? adamw.weight_decay() : 0,
                 .gradient_scale = scale};
  const double t = updates_ - segment.before;
  const double beta1 = step.beta1;
  const double beta2 = step.beta2;
  step.correction1 = 1 - std::pow(beta1, t);
  step.correction2 = 1 - std::pow(beta2, t);
  return step;
}

}  // namespace cadre
