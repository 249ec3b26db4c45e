// What `cadre help` says.
//
// Thread-safe (pure functions).
#pragma once

#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

struct Verb {
  absl::string_view name;
  // Its words and own flags, such as "RUN.textproto [--detach]".
  absl::string_view usage;
  // One line.
  absl::string_view brief;
  // Paragraphs, flags and examples.
  absl::string_view text;
};

// All verbs, in the order in which help lists them.
std::span<const Verb> Verbs();

// Null for an unknown verb.
const Verb* FindVerb(absl::string_view name);

// Help on everything.
std::string GeneralHelp();
// Help on one verb.
std::string VerbHelp(const Verb& verb);

}  // namespace cadre
