// Completion scripts for shells, generated from the table of verbs (cli/verb.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// The script that completes verbs, flags, choices, models of the zoo, files and directories.
// Errors: InvalidArgument if `shell` is not bash, zsh or fish.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell);

}  // namespace cadre
