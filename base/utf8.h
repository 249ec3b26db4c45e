// Validation of UTF-8.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace cadre {

// True for well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. Protobuf
// strings must be well-formed.
bool IsUtf8(absl::string_view bytes);

// Size of the first code point, which is stored in `point`; 0 if the bytes are empty or do not
// begin with a well-formed one.
size_t FirstCodePoint(absl::string_view bytes, uint32_t* point);

}  // namespace cadre
