// CRC32C (Castagnoli); uses the CPU's instruction if available (ISA-L).
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace cadre {

// Guarantees: Crc32c("123456789") == 0xe3069283.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace cadre
