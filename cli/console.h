// What every command has: its streams (data on `out`, progress and errors on `err`), the options
// that all commands share, and its exit codes.
//
// Streams are borrowed. Thread-compatible: one thread writes.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

struct Console {
  std::ostream& out;
  std::ostream& err;
  // Whether the streams are terminals, whose lines can be redrawn.
  bool out_terminal = false;
  bool err_terminal = false;
  bool color = false;
  // Current columns of the terminal.
  std::function<int()> width = [] { return 80; };
};

// kJsonLines: one object per line. kName: only the names of what a table lists. kWide: a table with
// further columns.
enum class OutputFormat { kTable, kWide, kName, kJson, kJsonLines };

inline bool IsJson(OutputFormat format) {
  return format == OutputFormat::kJson || format == OutputFormat::kJsonLines;
}

struct GlobalOptions {
  // host:port of the coordinator.
  std::string coordinator = "127.0.0.1:7000";
  // Folder of credentials (base/rpc/credentials.h); empty: none.
  std::string tls;
  // Whether to connect without TLS.
  bool insecure = false;
  OutputFormat format = OutputFormat::kTable;
  // Limit of the whole command; each command has its own default.
  std::optional<absl::Duration> timeout;
  // Suppresses progress on stderr.
  bool quiet = false;
};

// Exit codes; scripts rely on them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,
  kExitNotFound = 3,
  kExitUnavailable = 4,
  // The caller has no identity, or its role does not permit the call.
  kExitDenied = 5,
  kExitInterrupted = 130,
};

// An error of the command line, which is reported with the usage of the verb. Other errors, such as
// those of files and of the coordinator, are not, whatever their code.
absl::Status UsageError(absl::string_view message);
bool IsUsageError(const absl::Status& status);

// NotFound, Unavailable and DeadlineExceeded have their own codes; other errors are failures.
ExitCode ExitCodeOf(const absl::Status& status);

// Prints "cadre: <message>" on err. Returns the exit code of the status.
ExitCode Fail(const Console& console, const absl::Status& status);

}  // namespace cadre
