// The screen of a run's rounds (run.proto, Screen): what becomes of the contributions about which
// it objects. Changes the closing commit, RunRecord.screening, and what is decided about the
// contribution in the slots (slot.h).
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/commits.h"
#include "coordinator/run/screen.h"
#include "coordinator/run/slots.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class RoundScreening {
 public:
  // All are borrowed.
  RoundScreening(const RunView& run, StoredRun& stored, Slots& slots, Commits& commits,
                 Cluster& cluster)
      : run_(run), stored_(stored), slots_(slots), commits_(commits), cluster_(cluster) {}

  // Loads the changes of the newest commits that the store still has. Errors: DataLoss.
  absl::Status Load(const std::map<std::string, std::string>& records);
  // Decides about the closing commit. Returns whether it is to be applied again. Requires: all
  // shards have applied it.
  bool Screen();
  // The commit is published. The caller saves the record of the run.
  void OnCommit(const v1::CommitRecord& commit);
  // If nothing has remained of the round of the newest version, why; otherwise empty. The version
  // is then a copy of the one before.
  std::string WhyEmpty() const;
  // Returns the groups whose generations must end because successive rounds have left out their
  // contributions, and why. The next generations begin without what their ranks have kept, such as
  // optimizer states, since that may be the cause.
  std::map<uint32_t, std::string> MarkDistrusted();
  // Why a version does not include the contribution of the generation to a round that is closed.
  v1::Refusal WhyNotIncluded(const Slot& slot, uint32_t round) const;

 private:
  // Records and reports that a contribution to the closing commit is screened.
  void NoteScreened(const v1::ScreenedChange& change);

  const RunView& run_;
  StoredRun& stored_;
  Slots& slots_;
  Commits& commits_;
  Cluster& cluster_;
  PastChanges past_;
};

}  // namespace cadre
