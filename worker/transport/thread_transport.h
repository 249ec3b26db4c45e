// A transport between threads of one process, for tests of everything above it: the links of
// shared memory, on memory of the process.
//
// Each transport may outlive the others.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/transport/transport.h"

namespace cadre {

// One transport per rank. `timeout`: longest wait during which no byte moves. Takes a descriptor
// for each end of each pair and nine for each rank.
// Requires: ranks >= 1, and so many descriptors.
std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int ranks, absl::Duration timeout);

}  // namespace cadre
