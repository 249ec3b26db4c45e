// Our own collectives as contestants: a group connected by shared memory, TCP or threads, with a
// contestant for each algorithm, and "auto", which measures the links when they stand and then
// chooses per size by cost.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "bench/allreduce/contestant.h"
#include "worker/transport/transport.h"

namespace cadre::bench {

struct GroupOptions {
  int rank = 0;
  int ranks = 1;
  // Only TCP, although all ranks share a host.
  bool tcp = false;
  // TCP connections of a channel; 0: as many as the group itself decides.
  int connections = 0;
  absl::Duration timeout;
};

// Between processes.
std::unique_ptr<Network> MakeGroupNetwork(const GroupOptions& options);
// Over a transport that stands already.
std::unique_ptr<Network> MakeReadyNetwork(std::unique_ptr<Transport> transport);

}  // namespace cadre::bench
