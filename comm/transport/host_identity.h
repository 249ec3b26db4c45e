// Identifies the host of the calling thread. The number is equal for all processes and threads that
// can signal one another's wakeups, which requires the same kernel and network namespace.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace cadre {

// Returns a random number if the kernel does not provide the information; no other process then
// seems to be on this host.
uint64_t HostIdentity();

}  // namespace cadre
