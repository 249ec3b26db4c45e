// A number for the machine that this thread runs on: equal for all processes and threads that could
// ring one another's wakeups, which takes the same kernel and the same network namespace.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace cadre {

// Where the kernel does not say, a new number at every call: a machine that nobody else is on.
uint64_t HostIdentity();

}  // namespace cadre
