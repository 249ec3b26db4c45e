// One slot for a group of a run: the generation (the group's current membership) that occupies it,
// and the progress of that generation.
//
//   waiting --Form--> preparing --all Prepared, Start--> started --Clear--> waiting
//
// The durable state is in record(); after a restart of the coordinator the rest is rebuilt from
// messages of the members.
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
#include "coordinator/events/deadlines.h"
#include "coordinator/run/replan.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Slot {
 public:
  Slot() = default;
  Slot(const std::string& run, uint32_t group, absl::Time now);
  // Restores a slot after a restart of the coordinator.
  Slot(const v1::GroupRecord& record, absl::Time now);

  bool waiting() const { return record_.generation() == 0; }
  bool preparing() const { return !waiting() && !record_.started(); }
  bool started() const { return !waiting() && record_.started(); }
  bool catches_up() const { return started() && record_.catches_up(); }
  bool prepared() const { return preparing() && prepared_.size() == ranks(); }
  // Whether it is a program with a training loop of its own (Reservation).
  bool own_loop() const { return record_.plan().own_loop(); }
  uint32_t ranks() const { return record_.members_size(); }
  uint32_t group() const { return record_.group(); }
  const v1::GroupRecord& record() const { return record_; }
  // The ids of the members, by rank.
  std::vector<std::string> members() const {
    return {record_.members().begin(), record_.members().end()};
  }
  absl::Time waiting_since() const { return waiting_since_; }
  const std::map<uint32_t, v1::Prepared>& prepared_ranks() const { return prepared_; }

  // The plan in use: the assigned plan until rank 0 has reported it with buckets and link.
  const v1::Plan& plan() const {
    return record_.has_obeyed_plan() ? record_.obeyed_plan() : record_.plan();
  }

  // Duration from Form to Start. Requires: started().
  absl::Duration formation() const {
    return absl::Milliseconds(record_.started_ms() - record_.formed_ms());
  }

  // For how long it has been started, with an allowance for the clocks. Requires: started().
  absl::Duration SinceStart(absl::Time now) const;

  // Identifies a rank of the current generation.
  v1::RankSlot Place(uint32_t rank) const;

  // Lets a new generation occupy the slot. Requires: waiting().
  void Form(uint32_t generation, const std::vector<std::string>& members, const v1::Plan& plan,
            absl::Time now);
  // OK if `plan` equals the assigned plan except for buckets and link.
  // Errors: InvalidArgument naming the difference.
  absl::Status CheckReportedPlan(const v1::Plan& plan) const;
  // Stores that a rank is prepared. Requires: a plan in the message has passed CheckReportedPlan.
  void Prepare(const v1::Prepared& prepared);
  // The group loads `version`, of step `step`, and trains until `next_step`, its first boundary.
  // `catches_up`: other groups have already begun this round. Requires: prepared().
  void Start(uint32_t version, uint32_t step, uint32_t next_step, bool catches_up, absl::Time now);
  // Stores the predicted step times of the plan. `from_own_measurement`: the prediction uses only
  // measurements of this generation.
  void Predict(const v1::StepTimes& predicted, bool from_own_measurement);
  // Stores the measured and the predicted step time of the plan.
  void RecordPlan(double step_seconds, std::optional<double> predicted);
  // History of all generations of the slot.
  const PlanHistory& plans() const { return plans_; }
  // Ends the generation: the slot waits for workers again.
  void Clear(const std::string& reason, absl::Time now);
  // Marks that the group was informed of the end of the run. Returns false if it was marked.
  bool SetAtEnd();
  // A decision has begun a round. Returns whether the record has changed.
  bool SetCatchesUp(bool catches_up);
  // Whether the bytes of this round, or version, are not counted yet: true once for each.
  bool CountRound(uint32_t round);
  bool CountVersion(uint32_t version);
  // A generation has failed. After several failures without a commit the slot forms no generation
  // for a while.
  void AddFailure(v1::FailureCause cause, const std::string& reason, absl::Time now);
  absl::Time blocked_until() const;
  // A commit includes the group. Returns whether failures were recorded.
  bool ClearFailures();

  // The generation has trained this number of steps in this time, since its last contribution.
  // Errors: InvalidArgument, with both numbers, if more time is claimed than has passed; it is then
  // ignored.
  absl::Status NoteStepTime(double seconds, uint64_t steps, absl::Time now);
  // Seconds of a step in its last periods; 0: unknown.
  double step_seconds() const { return step_seconds_; }

  // Stores a report of rank 0. `per_sample`: tokens of a sample; 0: those that the group reports
  // for steps of `batch` samples.
  void SetProgress(const v1::Progress& reported, uint64_t per_sample, uint32_t batch);
  // By its last report; 0: not known.
  double tokens_per_second() const { return tokens_per_second_; }

  // -- Reports of rank 0, for the status and for answers.
  v1::Progress progress;
  // Version that the group is known to hold.
  uint32_t version = 0;
  // Whether rank 0 has sent a heartbeat since it last connected, so that its repeated reports are
  // likely to have arrived.
  bool reported = true;
  // Whether rank 0 exchanges values with the shards, by its last heartbeat.
  bool exchanges = false;
  // Newest round for which it was nudged.
  uint32_t nudged_round = 0;
  // Newest contributed round that is not answered yet; 0: none.
  uint32_t unanswered = 0;
  // A contribution to the round after the closing one, whose version the group has already.
  std::optional<v1::Contributed> early;
  // Newest round whose contribution was refused, and the reason.
  uint32_t refused_round = 0;
  v1::Refusal refusal = v1::REFUSAL_UNSPECIFIED;
  // Step times that rank 0 has measured, and when they arrived; whether a better plan was searched
  // since then, and the result of that search.
  std::optional<v1::StepTimes> measured;
  absl::Time measured_at = absl::InfinitePast();
  bool considered = false;
  // Whether the step time that it has measured is being predicted.
  bool predicting = false;
  std::optional<PlanChange> better;
  // While waiting: whether the next generation need not have a full set of workers, and members
  // preferred for it if they are idle.
  bool wait_ended = false;
  std::vector<std::string> preferred_members;
  // The progress of its ranks; empty until one has reported it.
  std::optional<ProgressWatch> watch;

 private:
  // Requires: `progress` is not stored yet.
  void NoteTokens(const v1::Progress& reported, uint64_t per_sample, uint32_t batch);
  void ResetProgress();

  v1::GroupRecord record_;
  std::map<uint32_t, v1::Prepared> prepared_;
  PlanHistory plans_;
  absl::Time waiting_since_;
  // Training time of the generation's contributions since the coordinator has started.
  double claimed_seconds_ = 0;
  // Exponential average.
  double step_seconds_ = 0;
  double tokens_per_second_ = 0;
};

}  // namespace cadre
