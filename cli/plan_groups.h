// How many groups the workers should make (coordinator/plan/group_choice.h), as `cadre plan` prints
// it.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/plan_question.h"
#include "coordinator/plan/group_choice.h"

namespace cadre {

// Whether the options ask for it: by --groups, or by a profile and a table of epochs.
bool AsksForGroups(const PlanOptions& options);

// Errors: ChooseGroups's, those of the files that the options name; InvalidArgument when nobody
// says how many samples a pass has although there is a table of epochs.
absl::StatusOr<GroupsAnswer> PlanGroups(const PlanQuestion& question);

std::string GroupsText(const GroupsAnswer& answer);
std::string GroupsJson(const GroupsAnswer& answer);

}  // namespace cadre
