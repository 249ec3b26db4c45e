// Parking, resuming and rolling back of a run. Changes the fields of RunRecord of its state.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/aggregators.h"
#include "coordinator/run/attribution.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_groups.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/stored_run.h"

namespace cadre {

class RunView;

class RunParking {
 public:
  // The parts that stop and continue. Borrowed.
  struct Parts {
    RunEvaluation& evaluation;
    RunRounds& rounds;
    Aggregators& aggregators;
    RunGroups& groups;
    Attribution& attribution;
  };
  // All are borrowed.
  RunParking(const RunView& run, StoredRun& stored, const Parts& parts, Cluster& cluster)
      : run_(run),
        stored_(stored),
        evaluation_(parts.evaluation),
        rounds_(parts.rounds),
        aggregators_(parts.aggregators),
        groups_(parts.groups),
        attribution_(parts.attribution),
        cluster_(cluster) {}

  // The run cannot continue without help.
  void Park(absl::string_view cause, absl::string_view remedy);
  void Park(const Aggregators::LostShard& lost);
  void ParkDiverged(absl::string_view reason);
  // Errors: FailedPrecondition if the run is not parked.
  absl::Status Resume();
  // As Run. Carried out by Advance.
  absl::Status RollBack(uint32_t version, const std::vector<uint32_t>& leave_out);
  // Carries out a rollback that was ordered, if it can be. Returns whether it was possible now.
  bool AdvanceRollback();

 private:
  // Continues a parked run.
  void Continue();

  const RunView& run_;
  StoredRun& stored_;
  RunEvaluation& evaluation_;
  RunRounds& rounds_;
  Aggregators& aggregators_;
  RunGroups& groups_;
  Attribution& attribution_;
  Cluster& cluster_;
};

}  // namespace cadre
