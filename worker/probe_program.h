// `cadre-worker --probe`: measures layers or links instead of training, without a coordinator.
// Started by `cadre probe`.
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/probe/machine_probe.h"

namespace cadre {

struct ProbeProgramOptions {
  // Layer probe: file with a ProbeRequest, as text if its name ends in .textproto.
  std::string request;
  // Link probe: host:port of every host, and the time limit for all of them to connect.
  std::vector<std::string> hosts;
  absl::Duration meet_timeout = absl::Seconds(60);
  // `rank` is that of this process among the workers of the host or, with `hosts`, of this host.
  // Rank 0 writes the result as text to the file `profile` in `folder`. The link probe reads the
  // host's own profile, which is the result of the layer probe, from the file `own` in it.
  MachineProbeOptions machine;
};

// Errors: those of ProbeMachine and ProbeHosts, and of the files.
absl::Status RunProbeProgram(const ProbeProgramOptions& options);

}  // namespace cadre
