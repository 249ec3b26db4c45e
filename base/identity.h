// Unique identifiers and seeds from the operating system's random numbers; not reproducible by
// design.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace cadre {

// 128 random bits as 32 hex digits.
std::string NewIdentity();
// 64 random bits.
uint64_t NewSeed();

// Name of this host; "unknown" if it has none.
std::string HostName();

}  // namespace cadre
