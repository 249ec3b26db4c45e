// Command lines as people type them: flags before, between or after the words, `--name value`,
// `--name=value`, `-o json`, `--flag`, `--noflag`; "--" ends the flags.
//
// The flags themselves live elsewhere (gflags, in main.cc) behind FlagRegistry.
// Thread-safe (pure functions over what they are given).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

class FlagRegistry {
 public:
  virtual ~FlagRegistry() = default;
  // Whether a flag of this name takes a value (false: it is a switch); nothing: no such flag.
  virtual std::optional<bool> TakesValue(absl::string_view name) const = 0;
  // Errors: InvalidArgument for a value that the flag does not take.
  virtual absl::Status Set(absl::string_view name, absl::string_view value) = 0;
  // For "did you mean".
  virtual std::vector<std::string> Names() const = 0;
};

// Sets the flags and returns the other words, in order.
// Errors: InvalidArgument for an unknown flag (with the nearest one), a missing or a bad value.
absl::StatusOr<std::vector<std::string>> ParseArguments(std::span<const std::string> arguments,
                                                        FlagRegistry& flags);

// The word among `words` that `word` is most likely a typo of; nothing if none is near.
std::optional<std::string> Nearest(absl::string_view word, std::span<const std::string> words);

// "90", "90s", "5m", "1h30m"; plain numbers are seconds. Errors: InvalidArgument.
absl::StatusOr<double> ParseSeconds(absl::string_view text);

}  // namespace cadre
