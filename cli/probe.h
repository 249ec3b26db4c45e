// The command `cadre probe`: measures this machine, or a cluster's, for one model and writes a
// cluster profile, which `cadre plan --profile` reads.
//
// It makes the plans that a planner might ask about, has as many worker processes as will share
// the machine time their layers at the same time, and, where there are other hosts, has one of each
// host measure the links between them. What was measured of a machine is kept in a cache, by
// hardware and model; links are measured each time.
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
  // The run spec's file, or a model of the zoo.
  std::string spec;
  SpecFlags flags;
  // Folder of the other programs.
  std::string programs;
  // Worker processes on this machine, and compute threads of each.
  uint32_t workers = 1;
  uint32_t threads = 1;
  // host:port of every host by rank, this one's among them; empty: this machine is alone. All hosts
  // run the same command, each with its rank; the host of rank 0 writes the profile.
  std::vector<std::string> peers;
  uint32_t rank = 0;
  // How long this host, when its layers are timed, waits until all others have come.
  absl::Duration meet_timeout = absl::Seconds(60);
  // Takes the profile; empty: stdout does.
  std::string output;
  // Folder of what was measured before; empty: nothing is kept.
  std::string cache;
  // Measure again what the cache has.
  bool fresh = false;
};

// Errors: InvalidArgument naming the flag that cannot be.
absl::Status CheckProbeOptions(const ProbeOptions& options);

// Returns the exit code. Requires: CheckProbeOptions is OK.
int ProbeCluster(const GlobalOptions& global, const ProbeOptions& options, const Console& console);

}  // namespace cadre
