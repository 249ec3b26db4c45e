// Traces the steps of a rank at the coordinator's request, and returns the trace to it.
//
// Borrows everything; the trace must outlive the replica, whose background thread adds to it.
// Thread-compatible: only the training thread calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/trace.h"
#include "member/group_control.h"
#include "model/graph.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/nn/network.h"
#include "worker/train/replica.h"

namespace cadre {

// Maximum bytes of one event in a message; longer names are truncated.
inline constexpr size_t kMaxTraceEventBytes = 160;

// Converts the `max_events` intervals that begin first. The number of the others is added to
// `dropped`, the number of intervals that did not fit in the trace. The caller sets place and
// request. Guarantees: names are valid UTF-8, and no event is longer than kMaxTraceEventBytes.
v1::Traced TracedFrom(std::vector<TraceInterval> intervals, uint64_t dropped, size_t max_events);

// Adds an interval to a trace for each operation of a tape (the operations of one pass, in order)
// that the rank's own thread executes. Borrows the trace and the graph.
class TapeTrace final : public TapeObserver {
 public:
  TapeTrace(Trace& trace, const Graph& graph) : trace_(trace), graph_(graph) {}

  // Number of the current step.
  void set_step(int64_t step) { step_ = step; }
  void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) override;

 private:
  Trace& trace_;
  const Graph& graph_;
  int64_t step_ = 0;
};

class StepTracer {
 public:
  // `before_trace`: called before a trace starts, so that other observers of the replica stop.
  StepTracer(GroupControl& control, Replica& replica, Trace& trace,
             std::function<absl::Status()> before_trace);
  ~StepTracer();

  // Whether a trace is being recorded.
  bool tracing() const { return request_.has_value(); }

  // Called before each step: starts a requested trace, and ends a trace that has all its steps.
  // Waits for the replica's operations before the end, so that the trace contains the last step's
  // collectives. Errors: the replica's.
  absl::Status BeforeStep(uint32_t step);
  // Called when training has ended before `step`: the trace ends with the steps that it has.
  absl::Status Finish(uint32_t step);

 private:
  // Takes a request, if there is one, and starts its trace with `step`.
  absl::Status MaybeBegin(uint32_t step);
  // Adds the step that has just ended to the trace.
  void AddStep(uint32_t step);
  absl::Status End(uint32_t step);

  GroupControl& control_;
  Replica& replica_;
  Trace& trace_;
  const std::function<absl::Status()> before_trace_;
  TapeTrace tape_;
  std::optional<v1::TraceSteps> request_;
  // The trace has the steps [first_step_, end_step_).
  uint32_t first_step_ = 0;
  uint32_t end_step_ = 0;
  int64_t step_start_us_ = 0;
};

}  // namespace cadre
