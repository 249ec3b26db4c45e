// The command `cadre trace`: records some steps of a group.
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
  // File of the trace; empty: trace-RUN.json in the working directory; "-": stdout, and the summary
  // goes to stderr.
  std::string output;
};

// Writes the file atomically. Waits for the steps, two minutes unless --timeout is given.
int TraceRun(const GlobalOptions& options, const TraceOptions& trace, const Console& console);

}  // namespace cadre
