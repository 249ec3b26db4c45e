// Changes of the number of groups. Part of Run.
//
// A request is stored in the record (scaling_to) until a round closes. Its commit record then
// contains how the samples are divided from the new version on (model/data_position.h), so that a
// crash or a later request cannot change what the aggregators store with the version. When the
// commit is finished, the run has that division and as many slots: new ones wait for workers, the
// highest ones are removed, and their groups are released instead of receiving a decision. They
// lose no steps that others count on: their contributions are part of the version, or too late.
//
// Every sample of an epoch is used once, as without a change, because the new division begins where
// the old one ends.
#include "absl/strings/str_cat.h"
#include "coordinator/run/run.h"
#include "coordinator/store/keys.h"
#include "model/data_position.h"
#include "model/validate.h"
#include "proto/enum_text.h"

namespace cadre {

absl::Status Run::Scale(uint32_t groups) {
  if (!live() || record_.state() == v1::RUN_STATE_FINISHING) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run ", id(), " is ", EnumText(record_.state()), " and makes no further version"));
  }
  if (!averages()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run ", id(), " never averages (averaging.every_steps: 0), so it has one group"));
  }
  if (groups == 0 || groups > kMaxGroups) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups: ", groups, " is not between 1 and ", kMaxGroups));
  }
  const v1::Averaging& averaging = spec().averaging();
  for (const auto& [name, min] :
       {std::pair("quorum", averaging.quorum()), std::pair("min_groups", averaging.min_groups())}) {
    if (groups >= min) continue;
    return absl::InvalidArgumentError(absl::StrCat("groups: ", groups, " is less than averaging.",
                                                   name, " of run ", id(), " (", min,
                                                   "): no round would close"));
  }
  record_.set_scaling_to(groups);
  Save();
  return absl::OkStatus();
}

v1::SampleDivision Run::NextDivision(uint32_t step) const {
  const v1::SampleDivision division = DivisionOf(record_);
  const uint32_t groups = record_.scaling_to();
  if (groups == 0 || groups == division.groups()) return division;
  return DivideFrom(division, step, groups, BatchOf(spec()));
}

void Run::ResizeSlots() {
  const uint32_t groups = DivisionOf(record_).groups();
  while (slots_.size() < groups) {
    slots_.Add(Slot(id(), slots_.size(), cluster_.now()));
  }
  while (slots_.size() > groups) {
    Slot& slot = slots_[slots_.size() - 1];
    if (InNewest(slot)) RecordSuccess(slot);
    Fence(slot, absl::StrCat("the run was scaled to ", groups, " groups"), kReleased);
    cluster_.out().EraseOne(GroupKey(id(), slot.group()));
    slots_.RemoveLast();
  }
  UpdateDemand();
}

}  // namespace cadre
