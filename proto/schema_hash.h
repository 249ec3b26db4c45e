// A fingerprint of the whole protocol.
//
// Two builds that could misread each other's messages have different hashes and refuse each other
// at the first message. The hash covers names, numbers and types of every field of the messages
// that processes send to each other, not comments.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace cadre {

// Guarantees: the same value in every process built from the same proto files.
uint64_t SchemaHash();

}  // namespace cadre
