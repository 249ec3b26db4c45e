// A command line, parsed and checked against the table of verbs (cli/verb.h).
//
// Flags may precede, follow or separate the other words: `--name value`, `--name=value`,
// `-O value`, `--switch`, `--noswitch`, `--no-switch`; "--" ends the flags. If a flag is given
// twice, the last one counts. Thread-compatible.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/verb.h"

namespace cadre {

class CommandLine {
 public:
  // `words` are the program's arguments without its own name. If --help or --version is among them,
  // nothing else is checked.
  // Errors: InvalidArgument for an unknown verb or flag (with the nearest one), a flag of another
  // verb, a bad value, a missing or unexpected argument.
  static absl::StatusOr<CommandLine> Parse(std::span<const std::string> words);
  // The verb in `words`, even if Parse refuses them; null if there is none.
  static const Verb* VerbOf(std::span<const std::string> words);

  // Null if there is none.
  const Verb* verb() const { return verb_; }
  bool help() const { return help_; }
  bool version() const { return version_; }

  const std::vector<std::string>& arguments() const { return arguments_; }
  // The first argument; "" if there is none.
  std::string argument() const { return arguments_.empty() ? "" : arguments_.front(); }

  // The verb's own flags that were given, by name.
  std::vector<std::string> given() const;
  bool Has(absl::string_view flag) const { return values_.contains(std::string(flag)); }
  // The flag's value or, if it was not given, its fallback; nullopt if it has none, or if the verb
  // has no such flag. T is std::string, bool, uint32_t, uint64_t, double or absl::Duration.
  template <typename T>
  std::optional<T> Get(absl::string_view flag) const {
    const std::optional<std::string> text = Text(flag);
    if (!text) return std::nullopt;
    T value;
    Convert(*text, value);
    return value;
  }
  // Whether a switch is on.
  bool On(absl::string_view flag) const { return Get<bool>(flag).value_or(false); }
  // Requires: the flag was given or has a fallback.
  template <typename T>
  T Value(absl::string_view flag) const {
    return Get<T>(flag).value();
  }

 private:
  absl::Status Split(std::span<const std::string> words);
  absl::Status CheckFlags();
  absl::Status CheckArguments() const;
  std::optional<std::string> Text(absl::string_view flag) const;

  // Requires: the text passed the check of its flag.
  static void Convert(const std::string& text, std::string& value);
  static void Convert(const std::string& text, bool& value);
  static void Convert(const std::string& text, uint32_t& value);
  static void Convert(const std::string& text, uint64_t& value);
  static void Convert(const std::string& text, double& value);
  static void Convert(const std::string& text, absl::Duration& value);

  const Verb* verb_ = nullptr;
  bool help_ = false;
  bool version_ = false;
  std::vector<std::string> arguments_;
  // The values as text, by the flag's name in the table.
  std::map<std::string, std::string> values_;
};

}  // namespace cadre
