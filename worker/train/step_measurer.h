// Finds out on rank 0 what its training steps are made of, and tells the coordinator: when some
// steps of the generation are done, and again when steps have become another quarter slower or
// faster.
//
// It looks at a few steps closely (step_profile.h), which costs them a clock reading for each
// operation; between that it reads the clock twice a step. On other ranks it does nothing.
//
// The last step before a boundary leaves its all-gather to the boundary, and is not like the
// others: it is passed over where others can be had, between boundaries that are more than two
// steps apart. Where they are not, every step is looked at, so at one step between boundaries what
// is told is without any all-gather, and at two the medians are of both kinds together.
//
// Borrows everything. Thread-compatible: the training thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/group_control.h"
#include "worker/train/replica.h"
#include "worker/train/step_profile.h"

namespace cadre {

class StepMeasurer {
 public:
  // Steps are compared by `clock`, which shall not be one that is set.
  StepMeasurer(const v1::GroupPlace& place, Replica& replica, GroupControl& control,
               const Clock& clock);

  struct Step {
    uint32_t number = 0;
    // The last one before a boundary.
    bool boundary = false;
    // Somebody else observes it.
    bool traced = false;
  };
  // Around each step of training. Errors: the replica's.
  absl::Status BeforeStep(const Step& step);
  absl::Status AfterStep();
  // What comes now is no step of training, or is observed by somebody else. Steps that were looked
  // at count; those that are missing are looked at later. Errors: the replica's.
  absl::Status Pause();

 private:
  // Steps that run while nobody looks closely, since the last that were looked at.
  struct Watch {
    // Of the first window; 0: it is not over. Later ones are compared with it.
    double usual = 0;
    double seconds = 0;
    int steps = 0;
  };

  // Whether this step shows what others are like.
  bool IsUsual(const Step& step);
  absl::Status Look();
  absl::Status Tell();
  // Whether a window is over whose steps took something else.
  bool HaveChanged();

  const v1::GroupPlace place_;
  GroupControl& control_;
  const Clock& clock_;
  StepProfile profile_;
  const bool lead_;
  // The profile observes the replica.
  bool looking_ = false;
  // The step under way is in the profile.
  bool in_profile_ = false;
  // Whether steps are to be looked at as soon as possible, and whether the profile has seen some of
  // them.
  bool wanted_ = true;
  bool begun_ = false;
  // Of this generation, up to those that nobody waits for.
  int steps_ = 0;
  // With this one, since the last boundary.
  uint32_t since_boundary_ = 0;
  absl::Time began_;
  Watch watch_;
};

}  // namespace cadre
