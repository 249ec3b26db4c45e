#include "worker/train/step_measurer.h"

#include <utility>

#include "base/status.h"

namespace cadre {
namespace {

// Number of warm-up steps, which find cold caches and allocate buffers.
constexpr int kStepsBefore = 2;
// Number of steps in a report, which contains their medians.
constexpr int kSteps = 6;
// With at most so many steps between boundaries, at least every second step is the last one before
// a boundary.
constexpr uint32_t kFewBetweenBoundaries = 2;
// Minimum steps and seconds of a window, so that a short disturbance does not count as a change.
constexpr int kWindowSteps = 8;
constexpr double kWindowSeconds = 5;
// A change of the step time by this factor, in either direction, causes a new report.
constexpr double kChange = 1.25;

}  // namespace

StepMeasurer::StepMeasurer(const v1::RankSlot& rank_slot, Replica& replica, GroupControl& control,
                           const Clock& clock)
    : rank_slot_(rank_slot),
      control_(control),
      clock_(clock),
      profile_(replica),
      lead_(rank_slot.rank() == 0) {}

absl::Status StepMeasurer::BeforeStep(const Step& step) {
  if (!lead_) return absl::OkStatus();
  const bool usual = IsUsual(step);
  if (step.traced) CADRE_RETURN_IF_ERROR(Pause());
  const bool warm = steps_ == kStepsBefore;
  if (!warm) ++steps_;
  if (report_due_ && warm && !step.traced) CADRE_RETURN_IF_ERROR(Profile());
  in_profile_ = profiling_ && usual;
  if (in_profile_) profile_.BeginStep(step.number);
  step_start_ = clock_.Now();
  return absl::OkStatus();
}

absl::Status StepMeasurer::AfterStep() {
  if (!lead_) return absl::OkStatus();
  if (in_profile_) {
    profile_.EndStep();
    return profile_.steps() < kSteps ? absl::OkStatus() : Report();
  }
  if (profiling_) return absl::OkStatus();
  watch_.seconds += absl::ToDoubleSeconds(clock_.Now() - step_start_);
  ++watch_.steps;
  if (!report_due_ && HaveChanged()) report_due_ = true;
  return absl::OkStatus();
}

absl::Status StepMeasurer::Pause() {
  if (!profiling_) return absl::OkStatus();
  profiling_ = false;
  return profile_.Stop();
}

bool StepMeasurer::IsUsual(const Step& step) {
  ++since_boundary_;
  if (!step.boundary) return true;
  return std::exchange(since_boundary_, 0) <= kFewBetweenBoundaries;
}

absl::Status StepMeasurer::Profile() {
  if (profiling_) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(has_steps_ ? profile_.Resume() : profile_.Start());
  profiling_ = true;
  has_steps_ = true;
  return absl::OkStatus();
}

absl::Status StepMeasurer::Report() {
  CADRE_RETURN_IF_ERROR(profile_.Stop());
  profiling_ = false;
  report_due_ = false;
  has_steps_ = false;
  watch_ = Watch();
  v1::Measured measured;
  *measured.mutable_place() = rank_slot_;
  *measured.mutable_times() = profile_.Times();
  *measured.mutable_layers() = profile_.Layers();
  measured.set_update_seconds(profile_.UpdateSeconds());
  measured.set_copy_seconds(profile_.CopySeconds());
  control_.Send(measured);
  return absl::OkStatus();
}

bool StepMeasurer::HaveChanged() {
  if (watch_.steps < kWindowSteps || watch_.seconds < kWindowSeconds) return false;
  const double mean = watch_.seconds / watch_.steps;
  watch_.seconds = 0;
  watch_.steps = 0;
  if (watch_.usual == 0) watch_.usual = mean;
  return mean > kChange * watch_.usual || watch_.usual > kChange * mean;
}

}  // namespace cadre
