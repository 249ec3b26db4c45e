// The command `cadre probe`: measures this machine, or a cluster's, for one model and writes a
// cluster profile, which `cadre plan --profile` reads.
//
// Worker processes, as many as will share the machine, time the model's layers simultaneously under
// the plans that a planner is likely to consider. If there are other hosts, one process per host
// then measures the links between them. The times of a machine are cached by hardware and model;
// links are measured every time.
//
// Call on the main thread; interrupts must be blocked (cli/interrupt.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/console.h"
#include "cli/options.h"
#include "cli/spec_file.h"

namespace cadre {

struct ProbeOptions {
  // The run file, or the name of a model of the zoo.
  std::string spec;
  SpecFlags flags;
  // Folder of the other programs.
  std::string programs;
  // Worker processes on this machine, and compute threads of each.
  uint32_t workers = 1;
  uint32_t threads = 1;
  // host:port of every host by rank, including this one; empty: there are no other hosts. All hosts
  // run the same command, each with its rank; rank 0 writes the profile.
  std::vector<std::string> peers;
  uint32_t rank = 0;
  // How long this host waits for the others after its layers are timed.
  absl::Duration meet_timeout = absl::Seconds(60);
  // File of the profile; empty: stdout.
  std::string output;
  // Folder of the cache; empty: no cache.
  std::string cache;
  // Measure again what the cache has.
  bool fresh = false;
};

// Errors: InvalidArgument naming the flag that is out of range.
absl::Status CheckProbeOptions(const ProbeOptions& options);

// Returns the exit code. Requires: CheckProbeOptions is OK.
int ProbeCluster(const GlobalOptions& global, const ProbeOptions& options, const Console& console);

}  // namespace cadre
