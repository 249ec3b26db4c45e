// One group slot of a run: the generation that fills it, and how far that is.
//
//   waiting --Form--> preparing --all Prepared, Start--> started --Clear--> waiting
//
// What must survive a restart is in `record`; the rest is learnt anew from the members.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/group_trace.h"
#include "coordinator/replan.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Slot {
 public:
  Slot() = default;
  Slot(const std::string& run, uint32_t group, absl::Time now);
  // As a restarted coordinator finds it.
  Slot(const v1::GroupRecord& record, absl::Time now);

  bool waiting() const { return record_.generation() == 0; }
  bool preparing() const { return !waiting() && !record_.started(); }
  bool started() const { return !waiting() && record_.started(); }
  bool prepared() const { return preparing() && prepared_.size() == ranks(); }
  uint32_t ranks() const { return static_cast<uint32_t>(record_.members_size()); }
  uint32_t group() const { return record_.group(); }
  const v1::GroupRecord& record() const { return record_; }
  // Ids, by rank.
  std::vector<std::string> members() const {
    return {record_.members().begin(), record_.members().end()};
  }
  absl::Time waiting_since() const { return waiting_since_; }
  const std::map<uint32_t, v1::Prepared>& prepared_ranks() const { return prepared_; }

  // As the ranks obey it: the one that they were given, until rank 0 has told what came of it.
  const v1::Plan& plan() const {
    return record_.has_obeyed_plan() ? record_.obeyed_plan() : record_.plan();
  }

  // How long it took from Form to Start. Requires: started().
  absl::Duration formation() const {
    return absl::Milliseconds(record_.started_ms() - record_.formed_ms());
  }

  // The place of a rank in the generation.
  v1::GroupPlace Place(uint32_t rank) const;

  // A new generation takes the slot, from `version` at `step`. Requires: waiting().
  void Form(uint32_t generation, const std::vector<std::string>& members, const v1::Plan& plan,
            uint32_t version, uint32_t step, absl::Time now);
  // Whether `plan` is the one that the generation was given, but for buckets and link. Errors:
  // InvalidArgument saying what differs.
  absl::Status CheckObeyed(const v1::Plan& plan) const;
  // Requires: a plan in it is OK by CheckObeyed.
  void Prepare(const v1::Prepared& prepared);
  // Requires: prepared().
  void Start(uint32_t next_step, absl::Time now);
  // What a step of the plan is thought to take; `from_own_measurement`: going by nothing but what
  // this very generation has measured.
  void Predict(const v1::StepTimes& predicted, bool from_own_measurement);
  // What a step of the plan takes, and what it was thought to take by what is known now.
  void LearnPlan(double step_seconds, std::optional<double> predicted);
  // Of all the slot's generations.
  const PlanMemory& plans() const { return plans_; }
  // The generation is over.
  void Clear(const std::string& reason, absl::Time now);
  // It was told that the run is at its end. False: it knew.
  bool SetAtEnd();
  // Whether the bytes of this round, of this version, are to be counted: true once for each.
  bool CountRound(uint32_t round);
  bool CountVersion(uint32_t version);
  // Lets the wait for a full set of workers be over at once.
  void StopWaiting() { waiting_since_ = absl::InfinitePast(); }

  // -- What the lead says of itself; for the status, and to answer it.
  v1::Progress progress;
  // Version that the group holds, as far as known.
  uint32_t version = 0;
  // Newest round that it contributed to and has not been answered, 0: none.
  uint32_t unanswered = 0;
  // Newest round whose contribution was refused, and why.
  uint32_t refused_round = 0;
  v1::Refusal refusal = v1::REFUSAL_UNSPECIFIED;
  // What steps take, as rank 0 has measured it; whether other plans were looked at since, and what
  // changing to the best would win.
  std::optional<v1::StepTimes> measured;
  bool considered = false;
  std::optional<PlanChange> better;
  // While waiting: members that make the next generation if they are idle, whoever else is.
  std::vector<std::string> again;
  // The trace that somebody waits for. Whoever clears the slot answers it first.
  std::optional<GroupTrace> trace;

 private:
  void ForgetProgress();

  v1::GroupRecord record_;
  std::map<uint32_t, v1::Prepared> prepared_;
  PlanMemory plans_;
  absl::Time waiting_since_;
};

}  // namespace cadre
