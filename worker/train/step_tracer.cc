#include "worker/train/step_tracer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/train/trace_report.h"

namespace cadre {
namespace {

// A message of some megabytes at most.
constexpr size_t kMostEvents = 20000;

}  // namespace

StepTracer::StepTracer(GroupControl& control, Replica& replica, Trace& trace)
    : control_(control), replica_(replica), trace_(trace), tape_(trace, replica.graph()) {
  replica_.set_trace(&trace_);
}

StepTracer::~StepTracer() { replica_.set_observer(nullptr); }

absl::Status StepTracer::BeforeStep(uint32_t step) {
  if (request_) {
    trace_.Add({.name = absl::StrCat("step ", step - 1),
                .category = "step",
                .lane = 0,
                .begin_us = step_began_us_,
                .duration_us = Trace::Now() - step_began_us_,
                .step = static_cast<int64_t>(step) - 1});
    if (step >= until_) CADRE_RETURN_IF_ERROR(End());
  }
  if (!request_) {
    request_ = control_.TakeTraceRequest();
    if (request_) {
      // What the step before still has under way is not part of the trace.
      CADRE_RETURN_IF_ERROR(replica_.Settle());
      until_ = step + std::max(1U, request_->steps());
      trace_.Start();
      replica_.set_observer(&tape_);
    }
  }
  tape_.set_step(step);
  replica_.set_step(step);
  if (request_) step_began_us_ = Trace::Now();
  return absl::OkStatus();
}

absl::Status StepTracer::End() {
  CADRE_RETURN_IF_ERROR(replica_.Settle());
  replica_.set_observer(nullptr);
  const uint64_t dropped = trace_.dropped();
  v1::Traced traced = TracedFrom(trace_.Stop(), dropped, kMostEvents);
  *traced.mutable_place() = request_->place();
  traced.set_request(request_->request());
  control_.Traced(traced);
  request_.reset();
  return absl::OkStatus();
}

}  // namespace cadre
