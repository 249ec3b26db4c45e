// What the coordinator's machine is told, and what it asks to be done.
//
// Plain values; protocol messages travel inside them as they are.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Names one Join stream; given by whoever drives the machine, never reused, never 0.
using ConnectionId = uint64_t;
// Names one call that waits for an answer; as above.
using RequestId = uint64_t;

// ---- Events

struct StreamOpened {
  ConnectionId connection = 0;
};

// The stream is over, for whatever reason.
struct StreamClosed {
  ConnectionId connection = 0;
};

struct MessageReceived {
  ConnectionId connection = 0;
  v1::MemberMessage message;
};

// Something came that is no message: too large, or not to be parsed. Answered by name, counted.
struct MessageRefused {
  ConnectionId connection = 0;
  v1::Refusal refusal = v1::REFUSAL_MALFORMED;
  std::string reason;
};

// Answered by Replied with the id of the run.
struct SubmitRun {
  RequestId request = 0;
  v1::RunSpec spec;
  // Drawn at random by the caller; makes the run's lineage unlike every other's.
  uint64_t lineage_seed = 0;
};

// Answered by Replied.
struct StopRun {
  RequestId request = 0;
  std::string run;
  std::string reason;
};

// Answered by TraceAnswered, when every rank of the group has traced so many steps.
struct TraceGroup {
  RequestId request = 0;
  std::string run;
  uint32_t group = 0;
  // 0: a few.
  uint32_t steps = 0;
};

// Whoever waited for a TraceGroup has left. It may have been answered already.
struct LeaveTrace {
  RequestId request = 0;
};

// Time has passed: look at leases, waits and windows. Only a Tick ends leases: the driver gives it
// when it has handed over all messages that have come, so that a driver that was held up does not
// take its own delay for the members' silence.
struct Tick {};

using Event = std::variant<StreamOpened, StreamClosed, MessageReceived, MessageRefused, SubmitRun,
                           StopRun, TraceGroup, LeaveTrace, Tick>;

// ---- Actions

// Write the record. All Persist and Erase of one Handle call are one transaction, which must be
// durable before any of its other actions is done.
struct Persist {
  std::string key;
  std::string value;
};

// Delete the record with this key or, if `prefix`, all whose key starts with it; there may be none.
// Comes before the Persist actions of its transaction.
struct Erase {
  std::string key;
  bool prefix = false;
};

// Send on the stream, in order; nothing to do when the stream is over.
struct Send {
  ConnectionId connection = 0;
  v1::CoordinatorMessage message;
};

// End the stream after what was sent on it before. StreamClosed need not follow (it may).
struct Disconnect {
  ConnectionId connection = 0;
  // What the member is told as the stream's status.
  absl::Status status;
};

// Answer to SubmitRun and StopRun.
struct Replied {
  RequestId request = 0;
  absl::Status status;
  // Id of the run; empty on error.
  std::string run;
};

// Answer to TraceGroup; once for each, unless LeaveTrace came before.
struct TraceAnswered {
  RequestId request = 0;
  absl::Status status;
  // One for each rank, in order; empty on error.
  v1::TraceReply reply;
};

using Action = std::variant<Persist, Erase, Send, Disconnect, Replied, TraceAnswered>;

}  // namespace cadre
