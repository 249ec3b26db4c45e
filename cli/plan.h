// The command `cadre plan`: what a group would do, without a cluster. Prints the plan of a run spec
// for so many workers, what it is predicted to cost on the machine that flags or a profile
// describe, and why it is this one.
//
// Thread-compatible.
#pragma once

#include "cli/console.h"
#include "cli/options.h"
#include "cli/plan_options.h"

namespace cadre {

// Returns the exit code. Requires: CheckPlanOptions is OK.
int ShowPlan(const GlobalOptions& global, const PlanOptions& options, const Console& console);

}  // namespace cadre
