// Traces the steps of a rank when somebody asks for it, and hands the trace in.
//
// Borrows everything; the trace must outlive the replica, whose background adds to it.
// Thread-compatible: the training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "base/trace.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/group_control.h"
#include "worker/train/replica.h"
#include "worker/train/tape_trace.h"

namespace cadre {

class StepTracer {
 public:
  // `before`: called when a trace is about to begin, so that whoever observes the replica stops.
  StepTracer(GroupControl& control, Replica& replica, Trace& trace,
             std::function<absl::Status()> before);
  ~StepTracer();

  // A trace is under way.
  bool tracing() const { return request_.has_value(); }

  // Called before each step: begins a trace that is wanted, and ends one that has its steps.
  // Errors: the replica's, which settles first so that the last step's collectives are in the
  // trace.
  absl::Status BeforeStep(uint32_t step);
  // No step comes any more, `step` would be the next: a trace that is under way ends with what it
  // has.
  absl::Status Finish(uint32_t step);

 private:
  // Takes a request, if there is one, and begins its trace with `step`.
  absl::Status MaybeBegin(uint32_t step);
  // The step that has just ended.
  void AddStep(uint32_t step);
  absl::Status End(uint32_t step);

  GroupControl& control_;
  Replica& replica_;
  Trace& trace_;
  const std::function<absl::Status()> before_;
  TapeTrace tape_;
  std::optional<v1::TraceSteps> request_;
  // Its first step, and the one before which the trace ends.
  uint32_t begun_ = 0;
  uint32_t until_ = 0;
  int64_t step_began_us_ = 0;
};

}  // namespace cadre
