// Commands that submit and end runs: run, stop, wait.
//
// Each returns the exit code. Thread-compatible.
#pragma once

#include <string>

#include "cli/console.h"
#include "cli/options.h"
#include "cli/spec_file.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Submits the run of the spec file at `path`, changed by the flags (`here` is false: the data lies
// on the workers' machines, so only they can check it); then follows it to its end, or, with
// `detach`, prints its id and leaves. 0 only when the run was done (or, detached, submitted).
int SubmitRun(const GlobalOptions& options, const std::string& path, SpecFlags flags, bool detach,
              const Console& console);
int StopRun(const GlobalOptions& options, const std::string& run, const Console& console);
// 0 only when the run is done.
int WaitForRun(const GlobalOptions& options, const std::string& run, const Console& console);

}  // namespace cadre
