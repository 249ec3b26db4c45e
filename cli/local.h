// The command `cadre local`: a cluster on this machine for one run.
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
  // The run file.
  std::string spec;
  // Replace values of the run file.
  SpecFlags flags;
  // Folder of the other programs.
  std::string programs;
  // Folder of all files; empty: a temporary one.
  std::string dir;
  uint32_t threads = 1;
  // Device of the workers; empty: the first GPU if the run file has device: CUDA, else the CPU.
  std::string device;
  bool restart = true;
  absl::Duration lease = absl::Seconds(5);
};

// Returns the exit code: 0 only when the run is done.
int RunLocal(const GlobalOptions& global, const LocalOptions& options, const Console& console);

}  // namespace cadre
