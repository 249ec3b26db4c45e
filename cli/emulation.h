// N synchronous workers as one: what a run spec becomes whose one worker does in a step what N
// workers of a batch each would do together, and how many epochs such a run took.
//
// A step takes N batches one behind the other and adds their gradients before it updates (gradient
// accumulation, or delayed update): the update of N workers that sum theirs, up to the order of
// additions. Statistics of batch norm are over each part, as they would be over each worker's own
// samples.
//
// Thread-safe (pure functions and values).
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// How the learning rate follows the samples of a step, k times those of the spec's.
enum class RateRule {
  // Times k (Goyal et al. 2017).
  kLinear,
  // Times the square root of k.
  kSqrt,
  // As it is.
  kNone,
};
std::optional<RateRule> RateRuleFromName(absl::string_view name);

struct Emulation {
  uint32_t workers = 1;
  // Samples of one worker's step.
  uint32_t batch = 1;
  RateRule rate = RateRule::kLinear;
  // Stop rules.
  float target = 1;
  uint32_t max_epochs = 1;
};

// The spec for one group of one worker. Steps that the spec's schedule counts (warm-up, step decay)
// last as many samples as before. A rate that is raised needs a warm-up: where the spec has none it
// gets one of as many samples as kWarmupSteps of the spec's steps, or of a tenth of the run where
// the spec tells how long that is (synthetic data) and it is less. Evaluates every epoch, averages
// nothing, keeps no checkpoint.
// Requires: spec.batch_per_group() > 0; workers * batch fits into 32 bits.
inline constexpr uint32_t kWarmupSteps = 100;
v1::RunSpec EmulatedSpec(v1::RunSpec spec, const Emulation& emulation);

// Equal where epochs that were measured may stand in one table: all of the emulated spec but its
// name and its seed (tables hold several), and the rule for the rate; whatever emulation.workers
// is. Never 0. Requires: as above.
uint64_t RecipeDigest(v1::RunSpec spec, Emulation emulation);

// Epochs at which a run got to its target, from what was seen of its evaluations.
// Thread-compatible.
class EpochsToTarget {
 public:
  explicit EpochsToTarget(double target) : target_(target) {}

  // The run as it stands; evaluations that were seen before are not counted again.
  void See(const v1::RunStatus& run);

  bool reached() const { return reached_.has_value(); }
  // Evaluations are an epoch apart. Between the last one below the target and the first at it,
  // accuracy is taken to be a straight line over epochs; without one below (the first evaluation of
  // all, or one that nobody saw), the epoch of the evaluation stands: an upper bound.
  // Requires: reached().
  double epochs() const { return *reached_; }
  // Whether epochs() is such an upper bound.
  bool coarse() const { return coarse_; }
  // Of the newest evaluation; 0 before the first.
  double accuracy() const { return accuracy_; }

 private:
  const double target_;
  // The newest evaluation.
  double epoch_ = 0;
  double accuracy_ = 0;
  bool any_ = false;
  std::optional<double> reached_;
  bool coarse_ = false;
};

}  // namespace cadre
