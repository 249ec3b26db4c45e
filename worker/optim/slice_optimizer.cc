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
#include <variant>

#include "glog/logging.h"
#include "model/optimizer_state.h"

namespace cadre {
namespace {

constexpr float kTrust = 0.001F;

// The settings of a run file as a step; defaults are those of kernels/optimizer_step.h.
OptimizerStep StepOf(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kAdamw: {
      const v1::AdamW& adamw = optimizer.adamw();
      AdamWStep step{.weight_decay = adamw.weight_decay()};
      if (adamw.has_beta1()) step.beta1 = adamw.beta1();
      if (adamw.has_beta2()) step.beta2 = adamw.beta2();
      if (adamw.has_epsilon()) step.epsilon = adamw.epsilon();
      return step;
    }
    case v1::Optimizer::kLars:
      return SgdStep{.momentum = optimizer.lars().momentum(),
                     .weight_decay = optimizer.lars().weight_decay()};
    case v1::Optimizer::kSgd:
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return SgdStep{.momentum = optimizer.sgd().momentum(),
                 .weight_decay = optimizer.sgd().weight_decay(),
                 .nesterov = optimizer.sgd().nesterov()};
}

// LARS's factor of the rate of a tensor, from the norms of its weights and of its gradients. A
// tensor of zeros has no usable norm and would stay zero permanently.
double LocalRate(const v1::Lars& lars, double w, double g) {
  if (!(w > 0 && g > 0)) return 1;
  return (lars.has_trust() ? lars.trust() : kTrust) * w / (g + lars.weight_decay() * w);
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

SliceOptimizer::SliceOptimizer(Backend& kernels, const v1::Optimizer& optimizer,
                               const ParameterIndex& index,
                               std::span<const float> statistic_momenta,
                               const BucketOwnership& bucket)
    : kernels_(&kernels),
      optimizer_(optimizer),
      step_(StepOf(optimizer)),
      uses_tensor_norms_(UsesTensorNorms(optimizer)),
      size_(bucket.slice_end() - bucket.slice_begin()) {
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
  if (kernels_->slices() == nullptr || uses_tensor_norms_) return;
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
    if (uses_tensor_norms_) {
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
  CHECK(!uses_tensor_norms_);
  if (table_ == nullptr) return;
  kernels_->slices()->UpdateSlice(
      step_, {.loss = guard.loss, .squares = guard.squares, .clip_norm = optimizer_.clip_norm()},
      *table_, gradients, weights, StatesWithin({0, size_}));
}

std::vector<std::span<float>> SliceOptimizer::StatesWithin(Interval elements) const {
  std::vector<std::span<float>> states;
  for (const DeviceArray<float>& state : state_) {
    states.push_back(state.span().subspan(elements.begin, elements.size()));
  }
  return states;
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
    } else {
      kernels_->optimizer().Update(StepFor(segment, rate, scale, norms), g, w,
                                   StatesWithin(common));
    }
  }
}

// As in LARS's paper, the local rate is inside the momentum, v = momentum * v + local * (g + decay
// * w), so that past gradients keep the local rate of their own step.
OptimizerStep SliceOptimizer::StepFor(const Segment& segment, float rate, double scale,
                                      const StepNorms& norms) const {
  double local = 1;
  if (uses_tensor_norms_ && segment.decays) {
    local = LocalRate(optimizer_.lars(), norms.WeightNorm(segment.parameter),
                      norms.GradientNorm(segment.parameter) * scale);
  }
  OptimizerStep step = step_;
  std::visit(
      [&](auto& rule) {
        rule.rate = rate;
        rule.weight_decay = segment.decays ? local * rule.weight_decay : 0;
        rule.gradient_scale = local * scale;
        rule.SetUpdates(updates_ - segment.before);
      },
      step);
  return step;
}

}  // namespace cadre
