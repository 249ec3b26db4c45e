// The command `cadre plan`: the plan of a run for a number of workers, its predicted cost on the
// hardware that flags or a profile describe, and why it was chosen. Needs no cluster.
//
// Thread-compatible.
#pragma once

#include "absl/status/statusor.h"
#include "cli/console.h"
#include "cli/options.h"
#include "cli/plan_options.h"
#include "plan/report/plan_question.h"

namespace cadre {

// Reads the files that the options name. Errors: LoadSpec's, ReadClusterProfile's,
// ReadEpochsTable's; their messages name file and line.
absl::StatusOr<PlanRequest> ReadPlanRequest(const PlanOptions& options);

// Returns the exit code. Requires: CheckPlanOptions is OK.
int ShowPlan(const GlobalOptions& global, const PlanOptions& options, const Console& console);

}  // namespace cadre
