// A transport between threads of one process: shared-memory links over private memory. For tests of
// the layers above and for groups of a single rank.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "comm/transport/transport.h"

namespace cadre {

// Returns one transport per rank; each may outlive the others. `timeout`: maximum time without
// progress. Uses one file descriptor per rank and peer, and nine per rank; terminates the process
// if too few are available. Requires: ranks >= 1.
std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int ranks, absl::Duration timeout);

}  // namespace cadre
