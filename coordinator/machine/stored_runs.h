// What the aggregators store, by their Hellos and reports: runs of this cluster, for which an
// aggregator may be refused or a record may prove older than the values, and unknown runs, which
// can be adopted.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "coordinator/machine/deleted_runs.h"
#include "coordinator/machine/runs.h"
#include "coordinator/run/adoption.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class StoredRuns {
 public:
  // All are borrowed and must outlive the object.
  StoredRuns(const CoordinatorOptions& options, Cluster& cluster, Runs& runs, DeletedRuns& deleted)
      : options_(options), cluster_(cluster), runs_(runs), deleted_(deleted) {}

  // Refuses an aggregator that must not take part because of what it stores, or lacks. Returns
  // whether it has.
  bool Refuse(ConnectionId connection, const v1::Hello& hello);
  // The aggregator has joined.
  void OnJoined(const Member& aggregator, const v1::Hello& hello);
  void OnReport(const Member& aggregator, const v1::RunReport& report);
  // Returns false if the run is not deleted, and is to learn of this.
  bool OnRunDeleted(const Member& aggregator, const v1::RunDeleted& message);
  // The stream of the aggregator has ended, or its lease.
  void OnAggregatorLost(const std::string& aggregator) {
    if (adoption_.has_value()) adoption_->Lose(aggregator);
  }

  void Adopt(const AdoptRuns& adopt);
  // Adopts the runs once all aggregators have reported, or the time for it is over.
  void FinishAdoption();
  absl::Time NextDeadline() const {
    return adoption_.has_value() ? adoption_->until : absl::InfiniteFuture();
  }

 private:
  // Whether another process of this name is connected, and has values that this one lacks.
  bool IsImpostor(const v1::Hello& hello) const;
  // Whether the aggregator of this name stored a run, by its last Hello, that this Hello lacks,
  // although nothing has ordered its removal.
  bool LacksStored(const v1::Hello& hello) const;
  // The live run of which the aggregator stores another lineage; null if there is none.
  const Run* RunOfOtherLineage(const v1::Hello& hello) const;
  // Whether the aggregator stores a run of this cluster.
  bool StoresKnownRun(const v1::Hello& hello) const;
  // The aggregator knows generations that this store has not assigned.
  void OnHigherGeneration(uint32_t generation);
  v1::AdoptedRun AdoptRun(const std::string& id, const RebuiltRun& rebuilt);

  const CoordinatorOptions& options_;
  Cluster& cluster_;
  Runs& runs_;
  DeletedRuns& deleted_;
  // Runs and lineages that have not ended, by the aggregators whose last Hello named them.
  std::map<std::string, std::set<std::pair<std::string, std::string>>> stored_;
  // Runs that the coordinator does not know, by the aggregators that store them, and the adoption
  // in progress.
  std::map<std::string, std::set<std::string>> unknown_;
  std::optional<Adoption> adoption_;
};

}  // namespace cadre
