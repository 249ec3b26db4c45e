// A transport between threads of one process, for tests of everything above it.
//
// The transports share the mailboxes; each may outlive the others.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/comm/transport.h"

namespace cadre {

// One transport per rank. A mailbox between two ranks holds a few messages, so a rank that runs
// ahead waits, as it would on a socket. `timeout`: longest wait for anything to move.
// Requires: ranks >= 1.
std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int ranks, absl::Duration timeout);

}  // namespace cadre
