// Emulation of N synchronous workers by one: a run whose step computes what N workers with one
// batch each compute together, and the number of epochs that this run takes to reach a target.
//
// A step accumulates the gradients of N batches before it updates. The result is the update of N
// workers that sum their gradients, except for the order of additions. Batch norm computes its
// statistics over each micro-batch, as each worker would over its own samples.
//
// Thread-safe (pure functions and values).
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// How the learning rate changes when a step has k times as many samples as in the run file.
enum class RateRule {
  // Multiplied by k (Goyal et al. 2017).
  kLinear,
  // Multiplied by the square root of k.
  kSqrt,
  // Unchanged.
  kNone,
};
std::optional<RateRule> RateRuleFromName(absl::string_view name);

struct Emulation {
  uint32_t workers = 1;
  // Samples of one worker's step.
  uint32_t batch = 1;
  RateRule rate = RateRule::kLinear;
  // Test accuracy and number of epochs at which the run stops.
  float target = 1;
  uint32_t max_epochs = 1;
};

// The emulated run, for one group of one worker. Warm-up and step decay, which count steps, last as
// many samples as before. If the rate is raised and the run has no warm-up, a warm-up is added. It
// has as many samples as kWarmupSteps of the original steps, but at most a tenth of the run if the
// run file states its length (synthetic data). The run evaluates every epoch, never averages and
// writes no checkpoint. Requires: spec.batch_per_group() > 0; workers * batch fits into 32 bits.
inline constexpr uint32_t kWarmupSteps = 100;
v1::RunSpec EmulatedSpec(v1::RunSpec spec, const Emulation& emulation);

// A digest that is equal for measurements that may share a table. It covers the rule for the rate
// and the emulated run, except its name, its seed (a table holds several) and the number of
// workers. Never 0. Requires: as above.
uint64_t RecipeDigest(v1::RunSpec spec, Emulation emulation);

// Determines from the evaluations of a run after how many epochs it reached its target.
// Thread-compatible.
class EpochsToTarget {
 public:
  explicit EpochsToTarget(double target) : target_(target) {}

  // Takes the run's latest status; an evaluation that was seen before has no effect.
  void Observe(const v1::RunStatus& run);

  bool reached() const { return reached_.has_value(); }
  // Evaluations are one epoch apart. Accuracy is interpolated linearly between the first evaluation
  // at or above the target and the one before it. If there was none before it, or it was not
  // observed, the result is the epoch of the first evaluation at the target, an upper bound.
  // Requires: reached().
  double epochs() const { return *reached_; }
  bool is_upper_bound() const { return is_upper_bound_; }
  // Accuracy of the latest evaluation; 0 before the first.
  double accuracy() const { return accuracy_; }

 private:
  const double target_;
  // Epoch and accuracy of the latest evaluation, if any.
  bool any_ = false;
  double epoch_ = 0;
  double accuracy_ = 0;
  std::optional<double> reached_;
  bool is_upper_bound_ = false;
};

}  // namespace cadre
