// A fingerprint of the whole protocol.
//
// Two builds that could misread one another's messages have different hashes, and refuse one
// another at the first message. It covers names, numbers and types of every field of every file in
// proto/cadre/v1, not comments.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace cadre {

// Guarantees: the same value in every process built from the same proto files.
uint64_t SchemaHash();

}  // namespace cadre
