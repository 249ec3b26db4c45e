// The worker's side of membership as a pure state machine: which rank slot (run, group, generation,
// rank) the worker has, which of its messages are unanswered, and which messages of the coordinator
// concern it.
//
// It maps (state, event) to (state, actions), without threads, clock, sockets or training: the
// worker program carries out the actions, and the simulation drives the same code.
//
// clang-format off
//   idle -> Assignment -> preparing -> Prepared -> Start -> training -> Contributed -> Decision ...
//   any  -> Release, or a newer Assignment, or failure   -> idle
// clang-format on
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
#include "member/group_control.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class AssignmentMachine {
 public:
  // Create the group's session and prepare.
  struct Begin {
    v1::Assignment assignment;
  };
  // Pass the message to the session: Start, Decision, Nudge, ShardAddresses, TraceSteps or Restage.
  struct Deliver {
    v1::CoordinatorMessage message;
  };
  // End the session; the rank slot is lost.
  struct Cancel {
    std::string reason;
  };
  struct Send {
    v1::MemberMessage message;
  };
  using Action = std::variant<Begin, Deliver, Cancel, Send>;
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
  Actions ReceiveAssignment(const v1::Assignment& assignment, uint64_t epoch);
  // Whether the message concerns the current rank slot, now.
  bool AcceptStart(const v1::Start& start);
  bool AcceptDecision(const v1::Decision& decision);
  Actions ReceiveRestage(const v1::CoordinatorMessage& message) const;
  Actions ReceiveRelease(const v1::Release& release);
  Actions ReceiveRefused(const v1::Refused& refused);
  bool IsCurrent(const v1::RankSlot& rank_slot) const;
  bool IsTraining(const v1::RankSlot& rank_slot) const { return started_ && IsCurrent(rank_slot); }
  // Forgets the slot and its unanswered messages.
  Actions Drop(std::string reason);

  template <typename T>
  std::optional<T>& unanswered() {
    return std::get<std::optional<T>>(unanswered_);
  }

  std::optional<v1::RankSlot> rank_slot_;
  struct Newest {
    uint32_t generation = 0;
    uint64_t epoch = 0;
  };
  // The newest generation seen, by lineage and group; a message with a lower one is late, unless
  // its coordinator was started later: that one may not know the generations of another, which ran
  // with a copy of its store. The key is the lineage (a model history's unique id) and not the run,
  // because a coordinator with a new store numbers runs and generations from one again.
  std::map<std::pair<std::string, uint32_t>, Newest> newest_;
  bool started_ = false;
  // A decision has ended the run; further decisions only assign intervals to evaluate.
  bool finished_ = false;
  // Messages that are sent again after a reconnect, in this order. There are no answers to
  // Measured, Adopted, Checkpointed and Evaluated: the latest of each is kept, because the
  // coordinator accepts repetitions. A checkpoint is reported before the evaluation that ends the
  // run. Progress, Traced and Restaged are lost with the stream: the next Progress replaces
  // the last one, and the coordinator requests the others again if it still needs them.
  std::tuple<std::optional<v1::GroupFailed>, std::optional<v1::Prepared>,
             std::optional<v1::Measured>, std::optional<v1::Adopted>,
             std::optional<v1::Checkpointed>, std::optional<v1::Evaluated>,
             std::optional<v1::Contributed>>
      unanswered_;
};

}  // namespace cadre
