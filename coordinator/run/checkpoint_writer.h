// Which group writes the checkpoints of a run (RunRecord.checkpoint_writer).
//
// One group does, so that a folder has one writer: the assignments of the others have no
// checkpoint.directory. At first it is group 0. Another group takes its place when it has waited
// for workers for a minute and rejoin_wait, when it is left out of the run or was removed, and when
// it is a program, which writes none:
//   - a group that is formed does;
//   - at a commit, when it holds no uncommitted state, a group that trains is released and formed
//     again with the same members, which keep their optimizer states;
//   - at the end of the run, the first group that has adopted the last version and evaluated its
//     part is, without a wait.
// So the writer changes only while the former one has no generation that may write.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/cluster/cluster.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/slot.h"
#include "coordinator/run/stored_run.h"

namespace cadre {

class CheckpointWriter {
 public:
  // All are borrowed.
  CheckpointWriter(const RunView& run, StoredRun& stored, RunEvaluation& evaluation,
                   Cluster& cluster)
      : run_(run), stored_(stored), evaluation_(evaluation), cluster_(cluster) {}

  bool Is(const Slot& slot) const { return slot.group() == evaluation_.checkpoints().writer(); }
  // A group of workers is being formed in the slot.
  void OnFormed(const Slot& slot);
  // At a commit: whether the group takes the place, so that its generation must end.
  bool Take(const Slot& slot);
  // At the end of the run: the group that takes the place, if one must; its generation must end.
  std::optional<uint32_t> TakeLast();

 private:
  // Whether another group may take the place.
  bool IsMissing() const;
  void Set(uint32_t group);

  const RunView& run_;
  StoredRun& stored_;
  RunEvaluation& evaluation_;
  Cluster& cluster_;
};

}  // namespace cadre
