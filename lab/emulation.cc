// One worker can emulate N: workers that sum their gradients make the same update as one worker
// whose batch is the union of theirs. Gradient accumulation computes the same sum in N
// micro-batches with the memory of one. The number of epochs as a function of N can therefore be
// measured on one machine, at N times the time per step; the time of N workers cannot.
//
// The schedule counts steps, and the emulated run has fewer of them per epoch by the factor of the
// batches. Lengths in steps are therefore divided by that factor (at least 1), which keeps them
// constant in samples. The rate follows RateRule; a rate that is raised needs a warm-up, since the
// network changes rapidly at first (Goyal et al. 2017, section 2.2).
#include "lab/emulation.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace cadre {
namespace {

// Consecutive evaluations are one epoch apart, except for a fraction of a step. If the distance is
// larger, an evaluation between them was not observed.
constexpr double kMaxEvaluationGap = 1.5;
// Largest share of a run that an added warm-up takes.
constexpr double kMaxWarmupShare = 0.1;

uint32_t Scaled(uint32_t steps, double factor) {
  return static_cast<uint32_t>(std::max(1.0, std::round(steps / factor)));
}

double RateFactor(RateRule rule, double samples_factor) {
  if (rule == RateRule::kLinear) return samples_factor;
  return rule == RateRule::kSqrt ? std::sqrt(samples_factor) : 1;
}

// Steps of the whole run if its data is synthetic, whose size the run file states; otherwise 0.
double StepsOf(const v1::RunSpec& spec, const Emulation& emulation) {
  const double samples = spec.data().synthetic().train_samples();
  return samples * emulation.max_epochs / emulation.workers / emulation.batch;
}

void ScaleSchedule(const Emulation& emulation, double factor, v1::RunSpec& spec) {
  v1::Schedule& schedule = *spec.mutable_schedule();
  const double rate = RateFactor(emulation.rate, factor);
  schedule.set_base_rate(schedule.base_rate() * rate);
  if (schedule.warmup_steps() > 0) {
    schedule.set_warmup_steps(Scaled(schedule.warmup_steps(), factor));
  } else if (rate > 1) {
    const double steps = StepsOf(spec, emulation);
    const uint32_t limit =
        steps > 0 ? static_cast<uint32_t>(std::max(1.0, kMaxWarmupShare * steps)) : kWarmupSteps;
    schedule.set_warmup_steps(std::min(limit, Scaled(kWarmupSteps, factor)));
  }
  if (schedule.step().every_steps() > 0) {
    schedule.mutable_step()->set_every_steps(Scaled(schedule.step().every_steps(), factor));
  }
}

}  // namespace

std::optional<RateRule> RateRuleFromName(absl::string_view name) {
  if (name == "linear") return RateRule::kLinear;
  if (name == "sqrt") return RateRule::kSqrt;
  if (name == "none") return RateRule::kNone;
  return std::nullopt;
}

v1::RunSpec EmulatedSpec(v1::RunSpec spec, const Emulation& emulation) {
  const uint32_t batch = emulation.workers * emulation.batch;
  const double factor = static_cast<double>(batch) / spec.batch_per_group();
  ScaleSchedule(emulation, factor, spec);
  spec.set_batch_per_group(batch);
  spec.set_micro_batches(emulation.workers * std::max(1U, spec.micro_batches()));
  spec.clear_averaging();
  spec.clear_cluster();
  spec.mutable_cluster()->set_groups(1);
  spec.mutable_cluster()->set_ranks_per_group(1);
  spec.clear_stop();
  spec.mutable_stop()->set_epochs(emulation.max_epochs);
  spec.mutable_stop()->set_test_accuracy(emulation.target);
  spec.mutable_evaluation()->set_every_epochs(1);
  v1::Checkpoint& checkpoint = *spec.mutable_checkpoint();
  checkpoint.clear_directory();
  checkpoint.clear_every_steps();
  checkpoint.clear_keep();
  if (checkpoint.from().empty()) spec.clear_checkpoint();
  return spec;
}

uint64_t RecipeDigest(v1::RunSpec spec, Emulation emulation) {
  spec.clear_name();
  spec.clear_seed();
  emulation.workers = 1;
  const v1::RunSpec one = EmulatedSpec(std::move(spec), emulation);
  std::string text = absl::StrCat("rate ", static_cast<int>(emulation.rate), "\n");
  {
    google::protobuf::io::StringOutputStream out(&text);
    google::protobuf::io::CodedOutputStream coded(&out);
    coded.SetSerializationDeterministic(true);
    one.SerializeToCodedStream(&coded);
  }
  return std::max<uint64_t>(1, TextDigest(text));
}

void EpochsToTarget::Observe(const v1::RunStatus& run) {
  const v1::EvaluationResult& test = run.test();
  if (test.samples() == 0 || run.total_steps() == 0 || reached()) return;
  const double epoch = run.total_epochs() * test.step() / run.total_steps();
  if (any_ && epoch <= epoch_) return;
  if (test.accuracy() >= target_) {
    is_upper_bound_ = !any_ || epoch - epoch_ > kMaxEvaluationGap;
    reached_ = is_upper_bound_ ? epoch
                               : epoch_ + (epoch - epoch_) * (target_ - accuracy_) /
                                              (test.accuracy() - accuracy_);
  }
  any_ = true;
  epoch_ = epoch;
  accuracy_ = test.accuracy();
}

}  // namespace cadre
