// Options that every command has, and what commands derive from them.
//
// Plain values.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "cli/console.h"
#include "cli/progress.h"
#include "coordinator/client/coordinator_client.h"

namespace cadre {

enum class OutputFormat { kTable, kJson };

struct GlobalOptions {
  // host:port of the coordinator.
  std::string coordinator = "127.0.0.1:7000";
  OutputFormat format = OutputFormat::kTable;
  // Limit of the whole command; each command has its own default.
  std::optional<absl::Duration> timeout;
  // Suppresses progress on stderr.
  bool quiet = false;
};

// A client for commands that make one call.
inline CoordinatorClient MakeClient(const GlobalOptions& options) {
  CoordinatorClient::Options client;
  client.coordinator = options.coordinator;
  if (options.timeout) client.timeout = *options.timeout;
  if (options.timeout) client.dial_timeout = std::min(client.dial_timeout, *options.timeout);
  return CoordinatorClient(client);
}

// The deadline of a command that starts now.
inline absl::Time DeadlineOf(const GlobalOptions& options, absl::Time now) {
  return options.timeout ? now + *options.timeout : absl::InfiniteFuture();
}

// Progress on stderr, as the console and the flags require.
inline ProgressOptions ProgressOnErr(const GlobalOptions& options, const Console& console) {
  return {.terminal = console.err_terminal,
          .color = console.color && console.err_terminal,
          .quiet = options.quiet,
          .width = console.width};
}

}  // namespace cadre
