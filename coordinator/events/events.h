// Events and actions of the coordinator's state machine (coordinator/machine/machine.h).
//
// They are plain values that contain protocol messages unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/events/planning.h"
#include "coordinator/store/store.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Identifies one Join stream; assigned by the driver, never reused, never 0.
using ConnectionId = uint64_t;
// Identifies one waiting call; assigned like ConnectionId.
using RequestId = uint64_t;

// ---- Events

struct StreamOpened {
  ConnectionId connection = 0;
};

// The stream has ended, for any reason.
struct StreamClosed {
  ConnectionId connection = 0;
};

struct MessageReceived {
  ConnectionId connection = 0;
  v1::MemberMessage message;
};

// A message that is too large or cannot be parsed. It is refused by name and counted.
struct MessageRefused {
  ConnectionId connection = 0;
  v1::Refusal refusal = v1::REFUSAL_MALFORMED;
  std::string reason;
};

// Answered by Replied with the id of the new run.
struct SubmitRun {
  RequestId request = 0;
  // Requires: CheckSpec (coordinator/machine/runs.h) accepts it.
  v1::RunSpec spec;
  // Random number that makes the lineage of the run (the id of its model's history) unique.
  uint64_t lineage_seed = 0;
  // As in SubmitRequest.
  bool join_existing = false;
  bool join_ended = false;
};

// Answered by Replied.
struct StopRun {
  RequestId request = 0;
  std::string run;
  std::string reason;
};

// Deletes a run that has ended. Answered by Replied.
struct DeleteRun {
  RequestId request = 0;
  std::string run;
};

// Changes the number of groups from the next version on. Answered by Replied.
struct ScaleRun {
  RequestId request = 0;
  std::string run;
  uint32_t groups = 0;
};

// Continues a parked run. Answered by Replied.
struct ResumeRun {
  RequestId request = 0;
  std::string run;
};

// Continues a run with a copy of a version that is kept, without some groups. Answered by Replied.
struct RollBackRun {
  RequestId request = 0;
  std::string run;
  uint32_t version = 0;
  std::vector<uint32_t> leave_out;
};

// Registers runs that aggregators store and the coordinator does not know; `run` empty: all of
// them. Answered by Replied once the aggregators have reported.
struct AdoptRuns {
  RequestId request = 0;
  std::string run;
};

// Answered by Replied once every rank of the group has traced `steps` steps.
struct TraceGroup {
  RequestId request = 0;
  std::string run;
  uint32_t group = 0;
  // Number of steps to trace; 0 means kDefaultTraceSteps.
  uint32_t steps = 0;
};

// The caller of a TraceGroup has disconnected. The call may already be answered.
struct CancelTrace {
  RequestId request = 0;
};

// Excludes workers from new work, or readmits them and erases their failures. With `drain` they
// also leave their groups and end; the shards of live runs move from an aggregator. Answered by
// Replied with the ids of the members.
struct CordonMembers {
  RequestId request = 0;
  // Member id, name of a worker or aggregator, or host.
  std::string member;
  bool undo = false;
  bool drain = false;
  // Seconds in which they end; 0: their own limits.
  double drain_seconds = 0;
};

// The answer to SearchPlans.
struct PlansFound {
  std::string run;
  std::string key;
  absl::StatusOr<std::vector<GroupPlan>> plans;
};

// The answer to PredictStep. Errors: those of Planning::Predict.
struct StepPredicted {
  std::string run;
  uint32_t group = 0;
  uint32_t generation = 0;
  double measured = 0;
  absl::StatusOr<v1::StepTimes> times;
};

// Time has passed: check leases, waits and windows. Only a Tick expires leases. The driver sends it
// after all received messages, so that its own delay does not count as silence of the members.
struct Tick {};

// The driver has not received messages for this time: all leases are extended by it.
struct Stalled {
  absl::Duration length;
};

// A limit of the coordinator's process has been reached.
struct LimitReached {
  // Names the limit and what it prevents; empty: there is room again.
  std::string limit;
};

using Event =
    std::variant<StreamOpened, StreamClosed, MessageReceived, MessageRefused, SubmitRun, StopRun,
                 DeleteRun, ScaleRun, ResumeRun, RollBackRun, AdoptRuns, TraceGroup, CancelTrace,
                 CordonMembers, PlansFound, StepPredicted, Tick, Stalled, LimitReached>;

// ---- Actions

// Store::Op changes records. All of one Handle call are one transaction, erasures first, which must
// be durable before any other action of the call is carried out.

// Sends on the stream, in order; ignored when the stream has ended.
struct Send {
  ConnectionId connection = 0;
  v1::CoordinatorMessage message;
};

// Ends the stream after the messages sent before. StreamClosed may follow.
struct Disconnect {
  ConnectionId connection = 0;
  // Status of the stream for the member.
  absl::Status status;
};

// Answer to an event with a RequestId: exactly one for each, except that a TraceGroup may have none
// after a CancelTrace.
struct Replied {
  RequestId request = 0;
  absl::Status status;
  // Id of the run that a SubmitRun has created or joined; empty on error. `ended`: see SubmitReply.
  std::string run;
  bool ended = false;
  // Ids of the members that a CordonMembers matched, and the models of ended runs that cannot be
  // read without the aggregator that it drains.
  std::vector<std::string> members;
  std::vector<std::string> sole_models;
  // The runs that an AdoptRuns has found.
  v1::AdoptReply adopted;
  // What a TraceGroup has recorded: one entry per rank, in order; empty on error.
  v1::TraceReply trace;
};

// Search plans (Planning::PlansFor), which may take seconds; answered by PlansFound with the same
// run and key.
struct SearchPlans {
  std::string run;
  std::string key;
  PlanQuery query;
  // Workers wait for the answer; such searches go first. An earlier action with the same key may
  // not have been urgent.
  bool urgent = false;
};

// Predict the step of a generation's plan (Planning::Predict); answered by StepPredicted with the
// same fields, unless a later one of the group replaces it.
struct PredictStep {
  std::string run;
  uint32_t group = 0;
  uint32_t generation = 0;
  // The step time that the group has measured; 0: it has just started.
  double measured = 0;
  PlanQuery query;
  v1::Plan plan;
};

// What drivers leave to a planner, and the event that answers it.
using PlanningWork = std::variant<SearchPlans, PredictStep>;
Event Answer(const Planning& planning, const PlanningWork& work);

// Start again, with a new state machine that is restored from the store, in an epoch higher than
// `above`; all streams end, and calls that wait for a Replied. Events may still be handled before.
struct BeginAgain {
  uint64_t above = 0;
};

using Action =
    std::variant<Store::Op, Send, Disconnect, Replied, SearchPlans, PredictStep, BeginAgain>;

}  // namespace cadre
