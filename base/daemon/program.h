// What the programs that run until SIGTERM have in common: how they start and fail, their metrics,
// and the flags --tls, --metrics-listen and --log-format.
//
//   constexpr cadre::Program kProgram{.name = "cadre-worker", ...};
//   if (const auto ended = kProgram.Start(&argc, &argv)) return *ended;
//
// Called from main only.
#pragma once

#include <gflags/gflags_declare.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/http/http_server.h"
#include "base/http/metrics.h"

DECLARE_string(tls);

namespace cadre {

struct Program {
  const char* name;
  // The text before the flags in --help.
  const char* usage;
  const char* version;
  // The file that defines its own flags.
  const char* source;

  // Blocks SIGTERM and SIGINT, parses the flags and begins the log. Returns the exit code if the
  // program has to end now. Call before starting threads.
  std::optional<int> Start(int* argc, char*** argv) const;

  // Prints why the program ends; returns `code`.
  int Fail(int code, absl::string_view reason) const;

  // Serves metrics as --metrics-listen requests; null without it. See MetricsServerOptions.
  absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(
      std::function<absl::Status()> ready, std::function<void(Metrics&)> collect) const;
};

}  // namespace cadre
