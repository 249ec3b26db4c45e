// `cadre-worker --probe`: measures layers or links instead of training, without a coordinator.
// Started by `cadre probe`.
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cadre {

struct ProbeProgramOptions {
  // Layer probe: file with a ProbeRequest, as text if its name ends in .textproto.
  std::string request;
  // Folder through which the processes find one another. Rank 0 writes the result as text to the
  // file `profile` in it. The link probe reads the host's own profile, which is the result of the
  // layer probe, from the file `own` in it.
  std::string folder;
  // Rank of this process among the workers of the host, or, with `hosts`, of this host.
  int rank = 0;
  int ranks = 1;
  // Link probe: host:port of every host.
  std::vector<std::string> hosts;
  int threads = 1;
  bool shared_memory = true;
  absl::Duration patience = absl::Seconds(60);
  // Time limit for all hosts to connect.
  absl::Duration meet_timeout = absl::Seconds(60);
};

// Errors: those of ProbeMachine and ProbeHosts, and of the files.
absl::Status RunProbeProgram(const ProbeProgramOptions& options);

}  // namespace cadre
