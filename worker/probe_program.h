// `cadre-worker --probe`: what a worker process does that is asked to measure instead of to train.
// It needs no coordinator; `cadre probe` starts it.
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cadre {

struct ProbeProgramOptions {
  // A ProbeRequest: text if its name ends in .textproto. Of the layers' probe.
  std::string request;
  // Holds what this process and those beside it tell one another, and takes the result, `profile`
  // in text, from the process of rank 0. The links' probe finds this host's own profile there
  // (`own`), as the layers' probe has left it.
  std::string folder;
  // This process among the machine's workers; or, with `hosts`, this host among the hosts.
  int rank = 0;
  int ranks = 1;
  // host:port of every host: the links' probe.
  std::vector<std::string> hosts;
  int threads = 1;
  bool shared_memory = true;
  absl::Duration patience = absl::Seconds(60);
  // How long the other hosts are waited for until all have come.
  absl::Duration meeting = absl::Seconds(60);
};

// Errors: those of ProbeMachine and ProbeHosts, and of the files.
absl::Status RunProbeProgram(const ProbeProgramOptions& options);

}  // namespace cadre
