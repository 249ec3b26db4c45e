// Commands that submit and end runs: run, stop, wait.
//
// Each returns the exit code. Thread-compatible.
#pragma once

#include <string>

#include "cli/console.h"
#include "cli/options.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Submits the run of the spec file at `path`; then follows it to its end, or, with `detach`, prints
// its id and leaves. 0 only when the run was done (or, detached, submitted).
int SubmitRun(const GlobalOptions& options, const std::string& path, bool detach,
              const Console& console);
int StopRun(const GlobalOptions& options, const std::string& run, const Console& console);
// 0 only when the run is done.
int WaitForRun(const GlobalOptions& options, const std::string& run, const Console& console);

}  // namespace cadre
