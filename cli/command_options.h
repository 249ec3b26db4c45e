// Reads the options of each command from a command line.
//
// Thread-compatible.
#pragma once

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/local.h"
#include "cli/measure_epochs.h"
#include "cli/options.h"
#include "cli/placement.h"
#include "cli/plan_options.h"
#include "cli/probe.h"
#include "cli/spec_file.h"
#include "cli/trace.h"

namespace cadre {

GlobalOptions GlobalOptionsOf(const CommandLine& line);

// Errors of all of these: InvalidArgument, naming the flag.
absl::StatusOr<SpecFlags> SpecFlagsOf(const CommandLine& line);
absl::StatusOr<LocalOptions> LocalOptionsOf(const CommandLine& line);
absl::StatusOr<PlanOptions> PlanOptionsOf(const CommandLine& line);
absl::StatusOr<PlacementOptions> PlacementOptionsOf(const CommandLine& line);
absl::StatusOr<ProbeOptions> ProbeOptionsOf(const CommandLine& line);
absl::StatusOr<MeasureOptions> MeasureOptionsOf(const CommandLine& line);
TraceOptions TraceOptionsOf(const CommandLine& line);

}  // namespace cadre
