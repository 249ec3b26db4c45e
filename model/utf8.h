// Validation of UTF-8.
//
// Thread-safe (pure function).
#pragma once

#include "absl/strings/string_view.h"

namespace cadre {

// True for well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. Protobuf
// strings must be well-formed.
bool IsUtf8(absl::string_view bytes);

}  // namespace cadre
