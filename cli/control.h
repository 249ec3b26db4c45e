// Commands that submit, stop and await runs: run, stop, wait.
//
// Each returns the exit code. Thread-compatible.
#pragma once

#include <string>

#include "cli/console.h"
#include "cli/options.h"
#include "cli/spec_file.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Submits the run file at `path`, changed by the flags; then follows the run to its end or, with
// `detach`, prints its id. Data files are not checked: they are on the workers' machines. Returns 0
// only if the run is done (with `detach`: submitted).
int SubmitRun(const GlobalOptions& options, const std::string& path, SpecFlags flags, bool detach,
              const Console& console);
int StopRun(const GlobalOptions& options, const std::string& run, const Console& console);
// Returns 0 only if the run is done.
int WaitForRun(const GlobalOptions& options, const std::string& run, const Console& console);

}  // namespace cadre
