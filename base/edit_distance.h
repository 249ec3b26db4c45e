// Spelling suggestions ("did you mean ...?").
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// The minimum number of insertions, deletions, replacements and swaps of adjacent letters that turn
// `from` into `to` (optimal string alignment). Takes O(|from| |to|) time.
size_t EditDistance(absl::string_view from, absl::string_view to);

// The candidate of which `word` is most likely a misspelling or a prefix; nullopt if none is close.
std::optional<std::string> Nearest(absl::string_view word, std::span<const std::string> candidates);

}  // namespace cadre
