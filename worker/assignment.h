// The worker's side of membership as a pure machine: which place it has, what it has said that
// still waits for an answer, what of the coordinator's words concerns it.
//
// (state, event) -> (state, actions). No thread, clock, socket or training in here: the worker
// program carries the actions out, and the simulator drives the same code.
//
//   idle -> Assignment -> preparing -> Prepared -> Start -> training -> Contributed -> Decision ->
//   ... any -> Release, or a newer Assignment, or failure -> idle
//
// Thread-compatible.
//
// Guarantees: nothing is acted on or said for a generation other than the current one; a generation
// that is over never comes back; what waits for an answer is said again after every reconnect.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class AssignmentMachine {
 public:
  // Make the group and prepare.
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
  // Tear the group down; the place is lost.
  struct Cancel {
    std::string reason;
  };
  struct Send {
    v1::MemberMessage message;
  };
  // Shards may have moved: the addresses to use from now on.
  struct MoveShards {
    v1::ShardAddresses shards;
  };
  // Somebody wants a trace of the next steps.
  struct TraceNext {
    v1::TraceSteps trace;
  };
  using Action = std::variant<Begin, Go, Decide, Cancel, Send, MoveShards, TraceNext>;
  using Actions = std::vector<Action>;

  // A message of the coordinator (all but Welcome).
  Actions Receive(const v1::CoordinatorMessage& message);
  // The stream is open again: what still waits for an answer.
  Actions Connected() const;

  // What the training loop has to say. Messages for a place that is lost are dropped.
  Actions Tell(const v1::Prepared& prepared);
  Actions Tell(const v1::Progress& progress) const;
  Actions Tell(const v1::Measured& measured);
  Actions Tell(const v1::Contributed& contributed);
  Actions Tell(const v1::Adopted& adopted);
  Actions Tell(const v1::Evaluated& evaluated);
  // Lost with the stream: the coordinator asks again if it still wants it.
  Actions Tell(const v1::Traced& traced) const;
  // The group of `place` cannot go on. `permanent`: the run cannot, either.
  Actions Fail(const v1::RankSlot& place, bool permanent, const std::string& reason);

  // The place to name in Hello; nothing when idle.
  const std::optional<v1::RankSlot>& place() const { return place_; }

 private:
  Actions ReceiveAssignment(const v1::Assignment& assignment);
  Actions ReceiveStart(const v1::Start& start);
  Actions ReceiveDecision(const v1::Decision& decision);
  Actions ReceiveTraceSteps(const v1::TraceSteps& trace) const;
  Actions ReceiveRelease(const v1::Release& release);
  Actions ReceiveRefused(const v1::Refused& refused);
  bool IsCurrent(const v1::RankSlot& place) const;
  // Forgets the place and everything said in it.
  Actions Drop(std::string reason);

  std::optional<v1::RankSlot> place_;
  // Highest generation seen, by lineage and group; a lower one is a late message. Not by run: a
  // coordinator with a new store counts runs and generations from one again.
  std::map<std::pair<std::string, uint32_t>, uint32_t> newest_;
  bool started_ = false;
  // The run's end was decided; further decisions only hand out evaluation parts.
  bool finished_ = false;
  std::optional<v1::Prepared> unanswered_prepared_;
  std::optional<v1::Contributed> unanswered_contributed_;
  // There is no answer to these; the coordinator takes them as often as they come.
  std::optional<v1::Measured> last_measured_;
  std::optional<v1::Adopted> last_adopted_;
  std::optional<v1::Evaluated> last_evaluated_;
  std::optional<v1::GroupFailed> unanswered_failure_;
};

}  // namespace cadre
