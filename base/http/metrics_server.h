// Serves /metrics for Prometheus, and /healthz and /readyz for probes, over HTTP without TLS.
//
//   /healthz   200 while the process runs
//   /readyz    200 if it can do its work, otherwise 503 with the reason
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/http/http_server.h"
#include "base/http/metrics.h"

namespace cadre {

struct MetricsServerOptions {
  // host:port; the metrics contain names of runs, so the host should be reachable by the operator's
  // Prometheus only.
  std::string listen;
  // Why the process cannot do its work; OK if it can. Both functions are called on the server's
  // thread.
  std::function<absl::Status()> ready;
  // Adds the metrics of the program.
  std::function<void(Metrics&)> collect;
  std::string version;
};

// Errors: those of HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> StartMetricsServer(MetricsServerOptions options);

}  // namespace cadre
