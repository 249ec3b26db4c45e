// Traces of a group's next steps. Part of Run.
//
// A trace is a user's request that waits until every rank has answered. It is not durable: when the
// coordinator restarts, the user's call fails with its stream. If the generation ends, the request
// is answered with an error. A cancelled request frees the group for the next one.
#include "coordinator/run/run.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {

absl::Status Run::StartTrace(const TraceGroup& request, uint64_t number) {
  if (request.steps > kMaxTraceSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps: ", request.steps, " is not between 1 and ", kMaxTraceSteps));
  }
  if (request.group >= slots_.size()) {
    return absl::NotFoundError(absl::StrCat("run ", id(), " has no group ", request.group,
                                            "; it has groups 0 to ", slots_.size() - 1));
  }
  if (!live()) return absl::FailedPreconditionError(absl::StrCat("run ", id(), " has ended"));
  Slot& slot = slots_[request.group];
  if (!slot.started() || slot.record().at_end()) {
    return absl::FailedPreconditionError(absl::StrCat("group ", request.group, " of ", id(),
                                                      slot.waiting() ? " is waiting for workers"
                                                      : !slot.started()
                                                          ? " is preparing and does not train yet"
                                                          : " has trained its last step"));
  }
  if (slot.trace.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat("another trace of group ", request.group,
                                                     " of ", id(),
                                                     " is running; try again when it is done"));
  }
  slot.trace.emplace(
      GroupTrace::Options{.request = request.request,
                          .number = number,
                          .steps = request.steps == 0 ? kDefaultTraceSteps : request.steps,
                          .ranks = slot.ranks(),
                          .max_bytes = options_.max_trace_bytes});
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) SendTraceSteps(slot, rank);
  return absl::OkStatus();
}

void Run::CancelTrace(RequestId request) {
  for (Slot& slot : slots_) {
    if (slot.trace.has_value() && slot.trace->request() == request) slot.trace.reset();
  }
}

// Answers to traces that have ended are ignored.
void Run::OnTraced(const Member& member, const v1::Traced& traced) {
  Slot& slot = slots_[traced.place().group()];
  if (!slot.trace.has_value() || slot.trace->number() != traced.request()) return;
  slot.trace->Take(traced, member.record.name(), member.record.host());
  if (!slot.trace->complete()) return;
  cluster_.out().Reply({.request = slot.trace->request(), .trace = slot.trace->Reply()});
  slot.trace.reset();
}

void Run::SendTraceSteps(const Slot& slot, uint32_t rank) {
  if (!slot.trace.has_value() || slot.trace->answered(rank)) return;
  v1::CoordinatorMessage message;
  v1::TraceSteps& trace = *message.mutable_trace_steps();
  *trace.mutable_place() = slot.Place(rank);
  trace.set_request(slot.trace->number());
  trace.set_steps(slot.trace->steps());
  trace.set_max_events(slot.trace->max_events());
  cluster_.SendTo(slot.record().members(rank), message);
}

void Run::AbortTrace(Slot& slot, absl::string_view reason) {
  if (!slot.trace.has_value()) return;
  cluster_.out().Reply(
      {.request = slot.trace->request(),
       .status = absl::AbortedError(absl::StrCat("group ", slot.group(), " of ", id(),
                                                 " ended while it was traced: ", reason))});
  slot.trace.reset();
}

}  // namespace cadre
