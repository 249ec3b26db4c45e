// Identifies the host of the calling thread. The number is equal for all processes and threads that
// can signal one another's wakeups, which requires the same kernel and network namespace.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace cadre {

// Returns a random number if the kernel does not provide the information: a host without peers.
uint64_t HostIdentity();

}  // namespace cadre
