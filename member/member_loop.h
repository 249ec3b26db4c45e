// The loop of one rank in one generation of a group: it carries out the actions of RankProtocol,
// with a TrainedModel, until the coordinator releases the group. member_loop.cc has an overview.
//
// Runs on the caller's thread; the cancellation ends it from any other thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "base/counters.h"
#include "member/cancellation.h"
#include "member/group_control.h"
#include "member/loop_options.h"
#include "member/trained_model.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// How a generation ended for this rank. `status` is never OK: a finished run ends with the release
// of the group (Cancelled).
struct TrainerOutcome {
  absl::Status status;
  // Unspecified if the coordinator has cancelled the training, or if the cause is not known.
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;
  // Ranks that are likely to have caused the failure. Empty: this one.
  std::vector<int> suspects;
  // The failure is that a peer was released from the group, as this rank will be.
  bool peer_released = false;
};

// Trains until the generation ends; borrows all arguments for the call. Adds to the counters
// staged_payload_bytes, staged_message_bytes, pulled_payload_bytes, pulled_message_bytes,
// versions_adopted, contributions_late and changes_dropped.
TrainerOutcome RunMemberLoop(const v1::Assignment& assignment, TrainedModel& model,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const MemberLoopOptions& options);

}  // namespace cadre
