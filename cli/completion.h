// Shell completion, computed from the table of verbs (cli/verb.h).
//
// The scripts that users install are short: they call `cadre __complete WORDS` whenever the user
// presses the tab key and pass its answer to the shell, so they do not depend on the table.
//
// Thread-safe (pure functions).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// The first argument with which the scripts call cadre.
inline constexpr char kCompleteCommand[] = "__complete";

// Completions of the last of `words`, which may be empty; `words` follow the name of the program.
// Each is "WORD" or "WORD<tab>DESCRIPTION"; ":files" and ":folders" mean all matching files or
// folders. If the last word is "--flag=text", they replace the text only.
std::vector<std::string> Completions(std::span<const std::string> words);

// The script for a shell. Errors: InvalidArgument if `shell` is not bash, zsh or fish.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell);

}  // namespace cadre
