#include "coordinator/run/checkpoint_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/run/formation.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// A lost worker usually returns within this time.
constexpr absl::Duration kWriterReturnTime = absl::Minutes(1);

}  // namespace

bool CheckpointWriter::IsMissing() const {
  const Checkpoints& checkpoints = evaluation_.checkpoints();
  if (!checkpoints.Writes()) return false;
  const uint32_t group = checkpoints.writer();
  if (group >= run_.slots().size() || run_.LeavesOut(group)) return true;
  const Slot& slot = run_.slots()[group];
  if (!slot.waiting()) return slot.own_loop();
  const absl::Duration return_time = std::max(kWriterReturnTime, RejoinWait(run_.spec()));
  return cluster_.now() >=
         (slot.record().lived() ? slot.waiting_since() + return_time : ShrinksAt(run_, slot));
}

void CheckpointWriter::Set(uint32_t group) {
  const uint32_t former = evaluation_.checkpoints().writer();
  evaluation_.checkpoints().SetWriter(group);
  stored_.Save();
  cluster_.ReportRun(v1::EVENT_KIND_CHECKPOINT, run_.id(),
                     absl::StrCat("group ", group, " writes the checkpoints in place of group ",
                                  former, ", which cannot"));
}

void CheckpointWriter::OnFormed(const Slot& slot) {
  if (!Is(slot) && IsMissing()) Set(slot.group());
}

bool CheckpointWriter::Take(const Slot& slot) {
  const bool trains = run_.record().state() == v1::RUN_STATE_RUNNING && !slot.own_loop();
  if (!trains || !IsMissing() || !AllConnected(slot, cluster_.members())) return false;
  // A run that is served earlier would take the released workers.
  const Member& first = *cluster_.members().Find(slot.record().members(0));
  if (cluster_.queue().DemandBefore(run_.number(), first.record.device_kind()) > 0) return false;
  Set(slot.group());
  return true;
}

std::optional<uint32_t> CheckpointWriter::TakeLast() {
  if (!run_.averages() || !evaluation_.checkpoints().LacksLast() || evaluation_.HasWriter()) {
    return std::nullopt;
  }
  for (const uint32_t group : run_.slots().started()) {
    const Slot& slot = run_.slots()[group];
    const bool ready =
        slot.version == run_.record().version() && evaluation_.PartOf(slot) == nullptr;
    if (slot.own_loop() || !ready || !AllConnected(slot, cluster_.members())) continue;
    Set(group);
    return group;
  }
  return std::nullopt;
}

}  // namespace cadre
