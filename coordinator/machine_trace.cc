// Traces of a group's next steps. Part of Machine.
//
// A trace is a user's request that waits until every rank has answered. It is not durable: when the
// coordinator restarts, the user's call fails with its stream. If the generation ends, the request
// is answered with an error. A cancelled request frees the group for the next one.
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine.h"

namespace cadre {

void Machine::OnTraceGroup(const TraceGroup& request) {
  const absl::StatusOr<Slot*> found = FindTraced(request);
  if (!found.ok()) {
    out_.Answer(request.request, found.status());
    return;
  }
  Slot& slot = **found;
  // Unique across restarts: a worker may still run a trace of the previous process.
  const uint64_t number = (uint64_t{meta_.starts()} << 32) | ++last_trace_;
  slot.trace.emplace(
      GroupTrace::Options{.request = request.request,
                          .number = number,
                          .steps = request.steps == 0 ? kDefaultTraceSteps : request.steps,
                          .ranks = slot.ranks(),
                          .max_bytes = options_.max_trace_bytes});
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) SendTraceSteps(slot, rank);
}

absl::StatusOr<Slot*> Machine::FindTraced(const TraceGroup& request) {
  if (request.steps > kMaxTraceSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps: ", request.steps, " is not between 1 and ", kMaxTraceSteps));
  }
  Run* const run = FindRun(request.run);
  if (run == nullptr) return absl::NotFoundError(absl::StrCat("no such run: ", request.run));
  if (request.group >= run->slots.size()) {
    return absl::NotFoundError(absl::StrCat("run ", request.run, " has no group ", request.group,
                                            "; it has groups 0 to ", run->slots.size() - 1));
  }
  if (!run->live()) {
    return absl::FailedPreconditionError(absl::StrCat("run ", request.run, " has ended"));
  }
  Slot& slot = run->slots[request.group];
  if (!slot.started() || slot.record().at_end()) {
    return absl::FailedPreconditionError(absl::StrCat("group ", request.group, " of ", request.run,
                                                      slot.waiting() ? " is waiting for workers"
                                                      : !slot.started()
                                                          ? " is preparing and does not train yet"
                                                          : " has trained its last step"));
  }
  if (slot.trace.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat("another trace of group ", request.group,
                                                     " of ", request.run,
                                                     " is running; try again when it is done"));
  }
  return &slot;
}

void Machine::OnCancelTrace(const CancelTrace& leave) {
  for (auto& [number, run] : runs_) {
    for (Slot& slot : run.slots) {
      if (slot.trace.has_value() && slot.trace->request() == leave.request) slot.trace.reset();
    }
  }
}

// Answers to traces that have ended are ignored.
void Machine::OnTraced(Member& member, const v1::Traced& traced) {
  Run* const run = RunAtPlace(member, traced.place());
  if (run == nullptr) return;
  Slot& slot = run->slots[traced.place().group()];
  if (!slot.trace.has_value() || slot.trace->number() != traced.request()) return;
  slot.trace->Take(traced, member.record.name(), member.record.host());
  if (!slot.trace->complete()) return;
  out_.Answer(slot.trace->request(), slot.trace->Reply());
  slot.trace.reset();
}

void Machine::SendTraceSteps(const Slot& slot, uint32_t rank) {
  if (!slot.trace.has_value() || slot.trace->answered(rank)) return;
  v1::CoordinatorMessage message;
  v1::TraceSteps& trace = *message.mutable_trace_steps();
  *trace.mutable_place() = slot.Place(rank);
  trace.set_request(slot.trace->number());
  trace.set_steps(slot.trace->steps());
  trace.set_max_events(slot.trace->max_events());
  SendTo(slot.record().members(rank), message);
}

void Machine::AbortTrace(Slot& slot, absl::string_view reason) {
  if (!slot.trace.has_value()) return;
  out_.Answer(slot.trace->request(),
              absl::AbortedError(absl::StrCat("group ", slot.group(), " of ", slot.record().run(),
                                              " ended while it was traced: ", reason)));
  slot.trace.reset();
}

}  // namespace cadre
