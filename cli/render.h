// Output of commands: each produces one value, which Print writes as text or as JSON. docs/json.md
// documents the keys.
//
// Thread-safe (pure functions over what they are given).
#pragma once

#include <string>

#include "cli/console.h"
#include "proto/json.h"

namespace cadre {

enum class JsonLayout { kIndented, kOneLine };

// Writes a value to the console in the format that the user asked for.
void Print(const Json& json, const std::string& text, const GlobalOptions& options,
           const Console& console, JsonLayout layout = JsonLayout::kIndented);

}  // namespace cadre
