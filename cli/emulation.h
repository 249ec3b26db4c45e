// Emulation of N synchronous workers by one: the run that computes in one step what N workers with
// a batch each compute together, and the number of epochs that it takes to reach a target.
//
// A step accumulates the gradients of N batches before it updates. That is the update of N workers
// that sum their gradients, up to the order of additions. Batch norm computes its statistics over
// each micro-batch, as each worker would over its own samples.
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
  // Times k (Goyal et al. 2017).
  kLinear,
  // Times the square root of k.
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

// The run for one group of one worker. Warm-up and step decay, which count steps, last as many
// samples as before. If the rate is raised and the run has no warm-up, it gets one of as many
// samples as kWarmupSteps of the original steps, but at most a tenth of the run where the run file
// states its length (synthetic data). The run evaluates every epoch, averages nothing and keeps no
// checkpoint. Requires: spec.batch_per_group() > 0; workers * batch fits into 32 bits.
inline constexpr uint32_t kWarmupSteps = 100;
v1::RunSpec EmulatedSpec(v1::RunSpec spec, const Emulation& emulation);

// Equal for measurements that may share a table: it covers the emulated run except name, seed (a
// table holds several) and number of workers, and the rule for the rate. Never 0. Requires: as
// above.
uint64_t RecipeDigest(v1::RunSpec spec, Emulation emulation);

// The epochs after which a run reached its target, from its evaluations. Thread-compatible.
class EpochsToTarget {
 public:
  explicit EpochsToTarget(double target) : target_(target) {}

  // Takes the run's latest status; an evaluation that was seen before has no effect.
  void Observe(const v1::RunStatus& run);

  bool reached() const { return reached_.has_value(); }
  // Evaluations are an epoch apart. Accuracy is interpolated linearly between the last evaluation
  // below the target and the first at or above it. If the former is missing (the first evaluation
  // of all, or one that was not observed), this is the epoch of the latter: an upper bound.
  // Requires: reached().
  double epochs() const { return *reached_; }
  bool is_upper_bound() const { return is_upper_bound_; }
  // Of the latest evaluation; 0 before the first.
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
