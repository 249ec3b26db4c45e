// Profiles training steps on rank 0 and reports the profile to the coordinator: after the first
// steps of the generation, and again when steps have become a quarter slower or faster.
//
// A few steps are profiled in detail (step_profile.h), at the cost of a clock reading per
// operation; otherwise the clock is read twice per step. On other ranks this class does nothing.
//
// The last step before a boundary (where the group contributes to an average) does not gather the
// weights, so it is not representative: it is skipped if boundaries are more than two steps apart.
// Otherwise every step is profiled: if boundaries are one step apart, the report contains no
// all-gather; if two, the medians mix both kinds of steps.
//
// Borrows everything. Thread-compatible: only the training thread calls it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "member/group_control.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/replica.h"
#include "worker/train/step_profile.h"

namespace cadre {

class StepMeasurer {
 public:
  // `clock` compares steps and must be monotonic.
  StepMeasurer(const v1::RankSlot& rank_slot, Replica& replica, GroupControl& control,
               const Clock& clock);

  struct Step {
    uint32_t number = 0;
    // The last step before a boundary.
    bool boundary = false;
    // A trace observes the step.
    bool traced = false;
  };
  // Around each step of training. Errors: the replica's.
  absl::Status BeforeStep(const Step& step);
  absl::Status AfterStep();
  // Called when training pauses, or before a trace observes the replica. Keeps the steps profiled
  // so far; the missing ones are profiled later. Errors: the replica's.
  absl::Status Pause();

 private:
  // Durations of the steps that have run without a profile since the last report.
  struct Watch {
    // Seconds per step in the first window of steps, with which later windows are compared; 0: not
    // known yet.
    double usual = 0;
    double seconds = 0;
    int steps = 0;
  };

  // Whether this step is representative.
  bool IsUsual(const Step& step);
  absl::Status Profile();
  absl::Status Report();
  // Whether a window has ended whose steps took significantly more or less time than usual.
  bool HaveChanged();

  const v1::RankSlot rank_slot_;
  GroupControl& control_;
  const Clock& clock_;
  StepProfile profile_;
  const bool lead_;
  // The profile observes the replica.
  bool profiling_ = false;
  // The current step is being profiled.
  bool in_profile_ = false;
  // A report is due.
  bool report_due_ = true;
  // The profile has some of the steps for the report that is due.
  bool has_steps_ = false;
  // Steps of this generation, counted up to the end of warm-up.
  int steps_ = 0;
  // Steps since the last boundary, including the current one.
  uint32_t since_boundary_ = 0;
  absl::Time step_start_;
  Watch watch_;
};

}  // namespace cadre
