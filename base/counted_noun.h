// A count with its noun, for messages.
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// "1 worker", "2 workers", "0 workers". An empty `plural` means the noun with an "s".
std::string Counted(int64_t count, absl::string_view noun, absl::string_view plural = "");

}  // namespace cadre
