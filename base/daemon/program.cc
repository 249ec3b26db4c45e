#include "base/daemon/program.h"

#include <gflags/gflags.h>
#include <glog/logging.h>

#include <iostream>
#include <utility>

#include "base/http/metrics_server.h"
#include "base/program_flags.h"
#include "base/rpc/daemon.h"
#include "base/rpc/json_log.h"
#include "base/status.h"

DEFINE_string(tls, "",
              "folder with ca.crt, tls.crt and tls.key, see 'cadre help certs'; replaced files are "
              "used without a restart");
DEFINE_string(metrics_listen, "",
              "host:port for /metrics, /healthz and /readyz over HTTP, without TLS; empty: none");
DEFINE_string(log_format, "text", "format of the log on stderr: text or json");

namespace cadre {

std::optional<int> Program::Start(int* argc, char*** argv) const {
  BlockTerminationSignals();
  if (const auto ended = ParseProgramFlags(usage, version, source, argc, argv)) return ended;
  FLAGS_logtostderr = true;
  google::InitGoogleLogging((*argv)[0]);
  if (const absl::Status format = SetLogFormat(FLAGS_log_format); !format.ok()) {
    return Fail(kExitBadFlags, format.message());
  }
  return std::nullopt;
}

int Program::Fail(int code, absl::string_view reason) const {
  std::cerr << name << ": " << reason << std::endl;
  return code;
}

absl::StatusOr<std::unique_ptr<HttpServer>> Program::StartMetrics(
    std::function<absl::Status()> ready, std::function<void(Metrics&)> collect) const {
  if (FLAGS_metrics_listen.empty()) return nullptr;
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> metrics,
                         StartMetricsServer({.listen = FLAGS_metrics_listen,
                                             .ready = std::move(ready),
                                             .collect = std::move(collect),
                                             .version = version}));
  LOG(INFO) << "metrics on http://" << metrics->address() << "/metrics";
  return metrics;
}

}  // namespace cadre
