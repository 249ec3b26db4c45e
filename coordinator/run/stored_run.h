// The record of one run, and its copy in the store.
//
// Every part of a run changes only its own fields of the record, which its header names, and saves
// the record after a change. Pure and thread-compatible.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/slot.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class StoredRun {
 public:
  // The cluster is borrowed.
  StoredRun(const v1::RunRecord& record, Cluster& cluster) : cluster_(cluster), record_(record) {}

  v1::RunRecord& record() { return record_; }
  const v1::RunRecord& record() const { return record_; }

  // The record was read from the store: events of its state were reported then.
  void SetReported() { reported_ = record_.state(); }
  // Stores the record, without the spec, and reports a change of its state.
  void Save();
  void SaveSpec();
  // Stores the record of the group.
  void Save(const Slot& slot);
  // Something has gone wrong although the run goes on. Returns false for a repetition.
  bool AddWarning(const std::string& text);
  // The run, which has ended, will be deleted, or not any more: stored, and reported as an event.
  void AnnounceRemoval(absl::Time at, const std::string& reason);
  void WithdrawRemoval();
  // When and why the run will be deleted; empty if it is kept.
  std::string RemovalText() const;

 private:
  Cluster& cluster_;
  v1::RunRecord record_;
  // The state of the last event about it.
  v1::RunState reported_ = v1::RUN_STATE_UNSPECIFIED;
};

}  // namespace cadre
