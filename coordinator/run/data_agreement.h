// The data of a run, by the numbers of samples that its hosts see, and ranks that see others.
// Changes the fields of RunRecord train_samples and test_samples.
//
// The first host may have an incomplete copy of the data. While no group has started, the data of
// the run is therefore replaced when more hosts have reported another one.
//
// Pure and thread-compatible.
#pragma once

#include <optional>
#include <string>

#include "coordinator/cluster/cluster.h"
#include "coordinator/run/attribution.h"
#include "coordinator/run/data_sizes.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_groups.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class DataAgreement {
 public:
  // All are borrowed.
  DataAgreement(const RunView& run, StoredRun& stored, DataSizes& sizes, RunEvaluation& evaluation,
                RunGroups& groups, Attribution& attribution, Cluster& cluster)
      : run_(run),
        stored_(stored),
        record_(stored.record()),
        sizes_(sizes),
        evaluation_(evaluation),
        groups_(groups),
        attribution_(attribution),
        cluster_(cluster) {}

  // The rank is prepared: its group can start, or fails if the rank sees other data than the run
  // has. Returns why the run fails, if it does.
  std::optional<std::string> OnPrepared(const Member& member, const v1::Prepared& prepared);

 private:
  // The run has the data that the rank sees. Returns why the run fails, if it does.
  std::optional<std::string> Record(const v1::Prepared& prepared);
  // Whether more hosts have the data that the rank sees than that of the run.
  bool Outvotes(const v1::Prepared& prepared) const;
  // Fails the groups that are being prepared with ranks that see data of these sizes.
  std::optional<std::string> FailOutvoted(const DataSizes::Sizes& sizes);
  // The rank sees other data than the run has.
  std::optional<std::string> Fail(const Member& member, const v1::Prepared& prepared);
  // The rank's data is that of the run.
  std::optional<std::string> Prepare(const Member& member, const v1::Prepared& prepared);

  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  DataSizes& sizes_;
  RunEvaluation& evaluation_;
  RunGroups& groups_;
  Attribution& attribution_;
  Cluster& cluster_;
};

}  // namespace cadre
