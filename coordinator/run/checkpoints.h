// The checkpoints that a run writes, by the reports of rank 0 of the group that writes them, and
// which group that is (coordinator/run/checkpoint_writer.h). Changes only the fields
// checkpoint and checkpoint_writer of RunRecord.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/cluster/membership.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Checkpoints {
 public:
  // Borrowed.
  explicit Checkpoints(v1::RunRecord& run) : run_(run) {}

  // Whether the run writes checkpoints, and the number of the group that does.
  bool Writes() const { return !run_.spec().checkpoint().directory().empty(); }
  uint32_t writer() const { return run_.checkpoint_writer(); }
  void SetWriter(uint32_t group) { run_.set_checkpoint_writer(group); }
  // Returns what the report says to users, which may be nothing; nullopt for a repetition.
  std::optional<std::string> Record(const Member& member, const v1::Checkpointed& report);
  // Whether the run is about to end, and nothing was reported of its last checkpoint.
  bool LacksLast() const;
  // The run is done. Returns why the checkpoint of the newest step is missing; empty if it is not.
  std::string End();

 private:
  // Whether the checkpoint of the newest step is written, or could not be written.
  bool HasLast() const;
  bool FailedLast() const;

  v1::RunRecord& run_;
};

}  // namespace cadre
