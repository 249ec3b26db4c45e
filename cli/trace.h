// The command that traces some steps of a group: trace.
//
// Returns the exit code. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "cli/console.h"
#include "cli/options.h"

namespace cadre {

struct TraceOptions {
  std::string run;
  uint32_t group = 0;
  uint32_t steps = 3;
  // File to write; empty: trace-RUN.json in the working folder; "-": stdout, the summary then goes
  // to stderr.
  std::string output;
};

// The file appears whole or not at all. Waits for the steps, two minutes unless told otherwise.
int TraceRun(const GlobalOptions& options, const TraceOptions& trace, const Console& console);

}  // namespace cadre
