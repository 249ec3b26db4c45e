// The command `cadre local`: a whole cluster on this machine for one run.
//
// Call on the main thread; interrupts must be blocked (cli/interrupt.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "cli/console.h"
#include "cli/options.h"
#include "cli/spec_file.h"

namespace cadre {

struct LocalOptions {
  // The run spec's file.
  std::string spec;
  // In place of what the spec says.
  SpecFlags flags;
  // Folder of the other programs.
  std::string programs;
  // Folder to keep everything in; empty: a temporary one.
  std::string dir;
  uint32_t threads = 1;
  // What workers compute on; empty: on the first GPU where the spec says CUDA, else on the CPU.
  std::string device;
  bool restart = true;
  absl::Duration lease = absl::Seconds(5);
};

// Returns the exit code: 0 only when the run is done.
int RunLocal(const GlobalOptions& global, const LocalOptions& options, const Console& console);

}  // namespace cadre
