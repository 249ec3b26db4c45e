#include "coordinator/run/traces.h"

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_view.h"

namespace cadre {

absl::Status Traces::Start(const TraceGroup& request, uint64_t number) {
  if (request.steps > kMaxTraceSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps: ", request.steps, " is not between 1 and ", kMaxTraceSteps));
  }
  if (request.group >= run_.slots().size()) {
    return absl::NotFoundError(absl::StrCat("run ", run_.id(), " has no group ", request.group,
                                            "; it has groups 0 to ", run_.slots().size() - 1));
  }
  if (!run_.live())
    return absl::FailedPreconditionError(absl::StrCat("run ", run_.id(), " has ended"));
  const Slot& slot = run_.slots()[request.group];
  if (!slot.started() || slot.record().at_end()) {
    return absl::FailedPreconditionError(absl::StrCat("group ", request.group, " of ", run_.id(),
                                                      slot.waiting() ? " is waiting for workers"
                                                      : !slot.started()
                                                          ? " is preparing and does not train yet"
                                                          : " has trained its last step"));
  }
  if (traces_.contains(request.group)) {
    return absl::ResourceExhaustedError(absl::StrCat("another trace of group ", request.group,
                                                     " of ", run_.id(),
                                                     " is running; try again when it is done"));
  }
  traces_.try_emplace(
      request.group,
      GroupTrace::Options{.request = request.request,
                          .number = number,
                          .steps = request.steps == 0 ? kDefaultTraceSteps : request.steps,
                          .ranks = slot.ranks(),
                          .max_bytes = max_bytes_});
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) SendSteps(slot, rank);
  return absl::OkStatus();
}

void Traces::Cancel(RequestId request) {
  std::erase_if(traces_, [&](const auto& trace) { return trace.second.request() == request; });
}

// Answers to traces that have ended are ignored.
void Traces::OnTraced(const Member& member, const v1::Traced& traced) {
  const auto trace = traces_.find(traced.place().group());
  if (trace == traces_.end() || trace->second.number() != traced.request()) return;
  trace->second.Take(traced, member.record.name(), member.record.host());
  if (!trace->second.complete()) return;
  cluster_.out().Reply({.request = trace->second.request(), .trace = trace->second.Reply()});
  traces_.erase(trace);
}

void Traces::SendSteps(const Slot& slot, uint32_t rank) {
  const auto found = traces_.find(slot.group());
  if (found == traces_.end() || found->second.answered(rank)) return;
  v1::CoordinatorMessage message;
  v1::TraceSteps& trace = *message.mutable_trace_steps();
  *trace.mutable_place() = slot.Place(rank);
  trace.set_request(found->second.number());
  trace.set_steps(found->second.steps());
  trace.set_max_events(found->second.max_events());
  cluster_.SendTo(slot.record().members(rank), message);
}

void Traces::Abort(const Slot& slot, absl::string_view reason) {
  const auto trace = traces_.find(slot.group());
  if (trace == traces_.end()) return;
  cluster_.out().Reply(
      {.request = trace->second.request(),
       .status = absl::AbortedError(absl::StrCat("group ", slot.group(), " of ", run_.id(),
                                                 " ended while it was traced: ", reason))});
  traces_.erase(trace);
}

}  // namespace cadre
