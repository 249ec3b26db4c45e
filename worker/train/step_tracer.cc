#include "worker/train/step_tracer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/utf8.h"

namespace cadre {
namespace {

// Maximum bytes of a name. With an event's numbers, at most ten bytes each, the sum stays below
// kMaxTraceEventBytes.
constexpr size_t kMaxNameBytes = 72;
constexpr size_t kMaxCategoryBytes = 16;

// The longest prefix of `text` of at most `max_bytes` bytes that does not split a UTF-8 character,
// which protobuf would reject.
std::string Truncate(absl::string_view text, size_t max_bytes) {
  if (!IsUtf8(text)) return "?";
  size_t length = std::min(text.size(), max_bytes);
  while (!IsUtf8(text.substr(0, length))) --length;
  return std::string(text.substr(0, length));
}

void Fill(const TraceInterval& interval, v1::TraceEvent& event) {
  event.set_name(Truncate(interval.name, kMaxNameBytes));
  event.set_category(Truncate(interval.category, kMaxCategoryBytes));
  event.set_track(std::max(interval.track, 0));
  event.set_begin_us(interval.begin_us);
  event.set_duration_us(interval.duration_us);
  if (interval.bytes >= 0) event.set_bytes(interval.bytes);
  event.set_step(std::max<int64_t>(interval.step, 0));
}

const char* NameOf(TapeOpKind kind) {
  switch (kind) {
    case TapeOpKind::kMove:
      return "move to";
    case TapeOpKind::kForward:
      return "forward";
    case TapeOpKind::kLoss:
      return "loss";
    case TapeOpKind::kBackward:
      return "backward";
    case TapeOpKind::kMoveGradient:
      return "move gradient of";
    case TapeOpKind::kSend:
      return "send to";
    case TapeOpKind::kReceive:
      return "receive for";
    case TapeOpKind::kAdd:
      return "add gradients of";
  }
  return "";
}

}  // namespace

void TapeTrace::Played(const Tape& /*tape*/, const TapeOp& op, absl::Time begin, double seconds) {
  if (!trace_.on()) return;
  const absl::Duration duration = absl::Seconds(seconds);
  trace_.Add(
      {.name = absl::StrCat(op.again ? "again: " : "", NameOf(op.kind), " ", graph_[op.layer].name),
       .category = IsMove(op) ? "move" : "compute",
       .track = 0,
       .begin_us = absl::ToUnixMicros(begin),
       .duration_us = absl::ToInt64Microseconds(duration),
       .bytes = IsMove(op) ? op.move.elements_sent() * 4 : -1,
       .step = step_});
}

v1::Traced TracedFrom(std::vector<TraceInterval> intervals, uint64_t dropped, size_t max_events) {
  std::stable_sort(intervals.begin(), intervals.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin_us, -a.duration_us) < std::pair(b.begin_us, -b.duration_us);
  });
  const size_t kept = std::min(intervals.size(), max_events);
  v1::Traced traced;
  for (size_t i = 0; i < kept; ++i) Fill(intervals[i], *traced.add_events());
  traced.set_dropped(dropped + (intervals.size() - kept));
  return traced;
}

StepTracer::StepTracer(GroupControl& control, Replica& replica, Trace& trace,
                       std::function<absl::Status()> before_trace)
    : control_(control),
      replica_(replica),
      trace_(trace),
      before_trace_(std::move(before_trace)),
      tape_(trace, replica.graph()) {
  replica_.flow().set_trace(&trace_);
}

StepTracer::~StepTracer() { replica_.network().set_observer(nullptr); }

absl::Status StepTracer::BeforeStep(uint32_t step) {
  if (request_) {
    if (step >= end_step_) {
      CADRE_RETURN_IF_ERROR(End(step));
    } else {
      AddStep(step - 1);
    }
  }
  if (!request_) CADRE_RETURN_IF_ERROR(MaybeBegin(step));
  tape_.set_step(step);
  replica_.flow().set_step(step);
  if (request_) step_start_us_ = Trace::Now();
  return absl::OkStatus();
}

absl::Status StepTracer::Finish(uint32_t step) {
  // A request that arrived after the last step gets an empty trace.
  if (!request_) CADRE_RETURN_IF_ERROR(MaybeBegin(step));
  return request_ ? End(step) : absl::OkStatus();
}

absl::Status StepTracer::MaybeBegin(uint32_t step) {
  request_ = control_.TakeTraceRequest();
  if (!request_) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(before_trace_());
  // Operations of the step before do not belong to the trace.
  CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
  first_step_ = step;
  end_step_ = step + std::max(1U, request_->steps());
  trace_.Start();
  replica_.network().set_observer(&tape_);
  return absl::OkStatus();
}

void StepTracer::AddStep(uint32_t step) {
  trace_.Add({.name = absl::StrCat("step ", step),
              .category = "step",
              .track = 0,
              .begin_us = step_start_us_,
              .duration_us = Trace::Now() - step_start_us_,
              .step = step});
}

// No later step overlaps with the collectives of the last one, so it lasts until they are done.
absl::Status StepTracer::End(uint32_t step) {
  CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
  if (step > first_step_) AddStep(step - 1);
  replica_.network().set_observer(nullptr);
  const uint64_t dropped = trace_.dropped();
  v1::Traced traced = TracedFrom(trace_.Stop(), dropped, request_->max_events());
  *traced.mutable_place() = request_->place();
  traced.set_request(request_->request());
  control_.Send(traced);
  request_.reset();
  return absl::OkStatus();
}

}  // namespace cadre
