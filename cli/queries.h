// Commands that only read: runs, status, describe, members, watch.
//
// Each returns the exit code. Thread-compatible.
#pragma once

#include <string>

#include "cli/console.h"
#include "cli/options.h"

namespace cadre {

int ListRuns(const GlobalOptions& options, const Console& console);
// `run` is a run id, or empty for everything.
int ShowStatus(const GlobalOptions& options, const std::string& run, const Console& console);
// One run's groups in detail.
int DescribeRun(const GlobalOptions& options, const std::string& run, const Console& console);
int ShowMembers(const GlobalOptions& options, const Console& console);
// One line (table) or one object (json) per update on stdout, until the run ends; without a run,
// until the caller leaves.
int WatchRuns(const GlobalOptions& options, const std::string& run, const Console& console);

}  // namespace cadre
