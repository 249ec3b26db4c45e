// Where a command writes: data to `out`, progress and errors to `err`. And how it ends.
//
// Streams are borrowed. Thread-compatible: one thread writes.
#pragma once

#include <functional>
#include <ostream>

#include "absl/status/status.h"

namespace cadre {

struct Console {
  std::ostream& out;
  std::ostream& err;
  // Whether they are terminals, whose lines may be redrawn.
  bool out_terminal = false;
  bool err_terminal = false;
  bool color = false;
  // Columns of the terminal now.
  std::function<int()> width = [] { return 80; };
};

// Exit codes; scripts rely on them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,
  kExitNotFound = 3,
  kExitUnavailable = 4,
  kExitInterrupted = 130,
};

// NotFound, Unavailable and DeadlineExceeded have codes of their own; other errors are failures.
ExitCode ExitCodeOf(const absl::Status& status);

// "cadre: <message>" on err; returns the status's exit code.
ExitCode Fail(const Console& console, const absl::Status& status);

}  // namespace cadre
