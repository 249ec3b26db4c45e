// The worker's side of membership as a pure state machine: which rank slot (run, group, generation,
// rank) the worker has, which of its messages are unanswered, and which messages of the coordinator
// concern it.
//
// It maps (state, event) to (state, actions), without threads, clock, sockets or training: the
// worker program carries out the actions, and the simulation drives the same code.
//
//   idle -> Assignment -> preparing -> Prepared -> Start -> training -> Contributed -> Decision ->
//   ... any -> Release, or a newer Assignment, or failure -> idle
//
// Thread-compatible.
//
// Guarantees: no message is acted on or sent for a generation other than the current one; a
// generation that has ended never returns; unanswered messages are sent again after every
// reconnect.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/group_control.h"

namespace cadre {

class AssignmentMachine {
 public:
  // Create the group's session and prepare.
  struct Begin {
    v1::Assignment assignment;
  };
  // All ranks are prepared.
  struct Go {
    v1::Start start;
  };
  struct Decide {
    v1::Decision decision;
  };
  // The other groups wait for the contribution.
  struct Hurry {
    v1::Nudge nudge;
  };
  // End the session; the rank slot is lost.
  struct Cancel {
    std::string reason;
  };
  struct Send {
    v1::MemberMessage message;
  };
  // Shards may have moved: use these addresses from now on.
  struct MoveShards {
    v1::ShardAddresses shards;
  };
  // Trace the next steps.
  struct TraceNext {
    v1::TraceSteps trace;
  };
  // Stage values again at a shard that has lost its files.
  struct StageAgain {
    v1::Restage restage;
  };
  using Action =
      std::variant<Begin, Go, Decide, Hurry, Cancel, Send, MoveShards, TraceNext, StageAgain>;
  using Actions = std::vector<Action>;

  // Handles a message of the coordinator, other than Welcome.
  Actions Receive(const v1::CoordinatorMessage& message);
  // Called when the stream is open again: returns the unanswered messages.
  Actions Connected() const;

  // Handles a message of the training loop. Messages for a slot that is lost are dropped.
  Actions Report(const TrainingReport& report);
  // Reports that the group of `failed` cannot continue.
  Actions Fail(const v1::GroupFailed& failed);

  // Whether the rank's group has started.
  bool started() const { return started_; }
  // The rank slot to name in Hello; nothing when idle.
  const std::optional<v1::RankSlot>& rank_slot() const { return rank_slot_; }

 private:
  Actions ReceiveAssignment(const v1::Assignment& assignment);
  Actions ReceiveStart(const v1::Start& start);
  Actions ReceiveDecision(const v1::Decision& decision);
  Actions ReceiveTraceSteps(const v1::TraceSteps& trace) const;
  Actions ReceiveRestage(const v1::Restage& restage) const;
  Actions ReceiveRelease(const v1::Release& release);
  Actions ReceiveRefused(const v1::Refused& refused);
  bool IsCurrent(const v1::RankSlot& rank_slot) const;
  // Forgets the slot and its unanswered messages.
  Actions Drop(std::string reason);

  template <typename T>
  std::optional<T>& unanswered() {
    return std::get<std::optional<T>>(unanswered_);
  }

  std::optional<v1::RankSlot> rank_slot_;
  // Highest generation seen, by lineage and group; a message with a lower one is late. The key is
  // the lineage (a model history's unique id) and not the run, because a coordinator with a new
  // store numbers runs and generations from one again.
  std::map<std::pair<std::string, uint32_t>, uint32_t> newest_;
  bool started_ = false;
  // A decision has ended the run; further decisions only assign intervals to evaluate.
  bool finished_ = false;
  // Messages that are sent again after a reconnect, in this order. There are no answers to
  // Measured, Adopted and Evaluated: the latest of each is kept, because the coordinator accepts
  // repetitions. Progress, Traced and Restaged are lost with the stream: the next Progress replaces
  // the last one, and the coordinator requests the others again if it still needs them.
  std::tuple<std::optional<v1::GroupFailed>, std::optional<v1::Prepared>,
             std::optional<v1::Measured>, std::optional<v1::Adopted>, std::optional<v1::Evaluated>,
             std::optional<v1::Contributed>>
      unanswered_;
};

}  // namespace cadre
