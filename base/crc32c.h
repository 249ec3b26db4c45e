// CRC32C (Castagnoli); uses the CPU's instruction if available (ISA-L).
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace cadre {

// Guarantees: Crc32c("123456789") == 0xe3069283.
uint32_t Crc32c(absl::string_view bytes);

// The CRC of a text with this CRC and `more` after it.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view more);

// What a part of a text adds to the CRC of the whole: the CRC of a text is the XOR of the shares of
// its parts, in any order. `crc`: that of the part; `following`: the bytes of the text after it.
uint32_t CrcShare(uint32_t crc, uint64_t following);

}  // namespace cadre
