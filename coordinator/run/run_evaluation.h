// Evaluation of a run's versions, and its checkpoints, for the last of which the end of a run
// waits. Changes the fields of RunRecord of evaluations (evaluating, next_evaluation, test,
// evaluation_seconds) and checkpoints.
//
// When the step of a commit reaches the next evaluation, the test split is divided among the groups
// that adopt the version; each evaluates its part before it continues training. There is at most
// one evaluation at a time. Usually all parts arrive before the next one is due; if a group is
// lost, its part is free until a group starts from that version, and a newer evaluation supersedes
// the old one, whose result then covers fewer samples. Only at the end of a run is every part
// required, so free parts are assigned to groups that have finished their own.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/checkpoints.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/group_planner.h"
#include "coordinator/run/history.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/slot.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class RunEvaluation {
 public:
  // All are borrowed.
  RunEvaluation(const RunView& run, StoredRun& stored, History& history, Cluster& cluster,
                const GroupPlanner& planner)
      : run_(run),
        stored_(stored),
        record_(stored.record()),
        history_(history),
        cluster_(cluster),
        planner_(planner),
        checkpoints_(stored.record()) {}

  const Checkpoints& checkpoints() const { return checkpoints_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  // Whether all parts of an evaluation have arrived, which has not finished.
  bool complete() const { return record_.has_evaluating() && IsComplete(record_.evaluating()); }
  // Whether the group can evaluate: its ranks know the model's layers, or the programs of the run
  // do it themselves.
  bool Evaluates(const Slot& slot) const;
  // The part of the version that the group evaluates; null if none.
  const v1::EvaluationPart* PartOf(const Slot& slot) const {
    return AssignedPart(record_.evaluating(), slot.group());
  }
  // Whether a program still loads the last version.
  bool AwaitsPrograms() const;
  // Whether the group that writes the checkpoints, or one that takes its place, may still write the
  // last one.
  bool AwaitsCheckpoint() const;
  // Whether the group that writes the checkpoints exists, or can be formed of idle workers.
  bool HasWriter() const;

  // The run is at this step, and the next evaluation is due after it. The caller saves the run.
  void SetNext(uint32_t step) { record_.set_next_evaluation(NextEvaluation(record_, step)); }
  // The same for a run that begins again: what was evaluated is discarded.
  void Rewind(uint32_t step) {
    SetNext(step);
    record_.clear_evaluating();
  }
  // Starts an evaluation of the newest version by those of the groups that can. The caller saves
  // the run.
  void Begin(std::vector<uint32_t> groups);
  // Stores the result of a part. Errors: DataLoss if the group has evaluated another model than
  // that of the version.
  absl::Status OnEvaluated(const Member& member, const v1::Evaluated& evaluated);
  // Whether the report has news.
  bool OnCheckpointed(const Member& member, const v1::Checkpointed& report);
  // The finished parts become the run's result. Returns why the run is done, which may need no
  // words, if its stop rule is met.
  std::optional<std::string> Finish();
  // Assigns a free part to the group, if it can evaluate. Returns whether it has a new part.
  bool Assign(const Slot& slot);
  // The group has ended: its part is free.
  void Free(const Slot& slot);
  // The run is done. Returns why the checkpoint of the newest step is missing; empty if it is not.
  std::string EndCheckpoints() { return checkpoints_.End(); }

 private:
  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  History& history_;
  Cluster& cluster_;
  const GroupPlanner& planner_;
  Checkpoints checkpoints_;
};

}  // namespace cadre
