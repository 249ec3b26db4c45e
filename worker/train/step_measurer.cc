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

StepMeasurer::StepMeasurer(const v1::RankSlot& place, Replica& replica, GroupControl& control,
                           const Clock& clock)
    : place_(place),
      control_(control),
      clock_(clock),
      profile_(replica),
      lead_(place.rank() == 0) {}

absl::Status StepMeasurer::BeforeStep(const Step& step) {
  if (!lead_) return absl::OkStatus();
  const bool usual = IsUsual(step);
  if (step.traced) CADRE_RETURN_IF_ERROR(Pause());
  const bool warm = steps_ == kStepsBefore;
  if (!warm) ++steps_;
  if (wanted_ && warm && !step.traced) CADRE_RETURN_IF_ERROR(Profile());
  in_profile_ = looking_ && usual;
  if (in_profile_) profile_.BeginStep(step.number);
  began_ = clock_.Now();
  return absl::OkStatus();
}

absl::Status StepMeasurer::AfterStep() {
  if (!lead_) return absl::OkStatus();
  if (in_profile_) {
    profile_.EndStep();
    return profile_.steps() < kSteps ? absl::OkStatus() : Report();
  }
  if (looking_) return absl::OkStatus();
  watch_.seconds += absl::ToDoubleSeconds(clock_.Now() - began_);
  ++watch_.steps;
  if (!wanted_ && HaveChanged()) wanted_ = true;
  return absl::OkStatus();
}

absl::Status StepMeasurer::Pause() {
  if (!looking_) return absl::OkStatus();
  looking_ = false;
  return profile_.Stop();
}

bool StepMeasurer::IsUsual(const Step& step) {
  ++since_boundary_;
  if (!step.boundary) return true;
  return std::exchange(since_boundary_, 0) <= kFewBetweenBoundaries;
}

absl::Status StepMeasurer::Profile() {
  if (looking_) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(begun_ ? profile_.Resume() : profile_.Start());
  looking_ = true;
  begun_ = true;
  return absl::OkStatus();
}

absl::Status StepMeasurer::Report() {
  CADRE_RETURN_IF_ERROR(profile_.Stop());
  looking_ = false;
  wanted_ = false;
  begun_ = false;
  watch_ = Watch();
  v1::Measured measured;
  *measured.mutable_place() = place_;
  *measured.mutable_times() = profile_.Times();
  *measured.mutable_layers() = profile_.Layers();
  measured.set_update_seconds(profile_.UpdateSeconds());
  measured.set_copy_seconds(profile_.CopySeconds());
  control_.Measured(measured);
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
