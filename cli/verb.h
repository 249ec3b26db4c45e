// The command line as a table: verbs, their arguments and their flags.
//
// Everything that concerns the command line derives from this table and the texts of cli/help:
// parsing and its errors (cli/command_line.h), help (below, and cli/help.cc) and shell completion
// (cli/completion.h). A flag that is not in a verb's row can therefore not be given to the verb.
//
// Plain values; the table is constant and therefore thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/console.h"

namespace cadre {

class CommandLine;

// The input of a verb.
struct Invocation {
  const CommandLine& line;
  const GlobalOptions& global;
  const Console& console;
};

// The kind of value of a flag or an argument, which determines how it is checked and completed.
enum class ValueKind {
  kSwitch,    // true or false: --name or --no-name
  kText,      // anything; `choices` are suggestions of the completion
  kChoice,    // one of `choices`
  kCount,     // a whole number from `min` to `max`
  kNumber,    // a floating-point number from `low` to `high`
  kDuration,  // 90, 90s, 5m, 1h30m; above 0
  kFile,
  kFolder,
  kModel,  // a run file, or the name of a model of the zoo
  kVerb,
};

struct Flag {
  // Name with dashes; users may write underscores instead.
  absl::string_view name;
  ValueKind kind = ValueKind::kText;
  // Placeholder for the value in the help, such as "FILE".
  absl::string_view value;
  absl::string_view help;
  std::vector<absl::string_view> choices = {};
  // Value if the flag is not given; empty: none.
  absl::string_view fallback = "";
  uint64_t min = 0;
  uint64_t max = std::numeric_limits<uint32_t>::max();
  double low = std::numeric_limits<double>::lowest();
  double high = std::numeric_limits<double>::max();
  bool required = false;
  // Letter of the short form: "-O" for 'O'; 0: none.
  char letter = 0;

  Flag Choices(std::vector<absl::string_view> values) && {
    return choices = std::move(values), *this;
  }
  Flag Fallback(absl::string_view text) && { return fallback = text, *this; }
  Flag Min(uint64_t number) && { return min = number, *this; }
  Flag Max(uint64_t number) && { return max = number, *this; }
  Flag Range(double from, double to) && { return low = from, high = to, *this; }
  Flag Required() && { return required = true, *this; }
  Flag Letter(char c) && { return letter = c, *this; }
};

struct Argument {
  absl::string_view name;
  ValueKind kind = ValueKind::kText;
  bool optional = false;
  // Any number of values.
  bool repeated = false;
};

struct Verb {
  absl::string_view name;
  std::vector<Argument> arguments = {};
  std::vector<Flag> flags = {};
  // One line.
  absl::string_view brief;
  // Whether the verb handles interrupts itself, to end its child processes (cli/interrupt.h).
  bool handles_interrupts = false;
  // Returns the exit code. Errors: UsageError for an invalid command line, which is reported with
  // the usage of the verb; other errors are reported with the exit code of their status.
  std::function<absl::StatusOr<int>(const Invocation&)> run;
};

// All verbs, in the order of the general help.
const std::vector<Verb>& Verbs();
// The flags that every verb takes.
const std::vector<Flag>& GlobalFlags();

// Null for an unknown verb.
const Verb* FindVerb(absl::string_view name);
// The error for an unknown verb: UsageError, with the nearest verb.
absl::Status UnknownVerb(absl::string_view name);
// The flag of that name or letter, with dashes or underscores; null if it is not in the list.
const Flag* FindFlag(const std::vector<Flag>& flags, absl::string_view name);

// --- Help ---

// "--name", or "-o" for a name of one letter.
std::string FlagName(const Flag& flag);
// A line such as "cadre local RUN.textproto [flags]", with the flags that are required.
std::string Usage(const Verb& verb);
// The help on all verbs, and on one verb.
std::string GeneralHelp();
std::string VerbHelp(const Verb& verb);

}  // namespace cadre
