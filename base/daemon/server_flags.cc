#include "base/daemon/server_flags.h"

#include <gflags/gflags.h>

#include "absl/time/time.h"

DEFINE_bool(insecure, false,
            "neither encrypt nor authenticate, instead of --tls: only where every process that "
            "reaches the port is trusted");
DEFINE_int32(health_port, 0,
             "port for plaintext health checks alone (grpc.health.v1), at the host of --listen; 0: "
             "none");
DEFINE_int32(connection_age, 3600,
             "seconds after which a TLS connection ends and its peer connects again, so that its "
             "certificate is checked again");
DEFINE_string(port_file, "", "file that receives the port once the server listens");

namespace cadre {

absl::Status CheckServerFlags() {
  if (FLAGS_health_port < 0 || FLAGS_health_port > 65535) {
    return absl::InvalidArgumentError("--health-port must be 0 .. 65535");
  }
  if (FLAGS_connection_age < 1 || FLAGS_connection_age > 604'800) {
    return absl::InvalidArgumentError("--connection-age must be 1 .. 604800");
  }
  return absl::OkStatus();
}

DaemonOptions ServerOptions(const std::string& listen, const Credentials& credentials) {
  return {.listen = listen,
          .credentials = credentials,
          .insecure = FLAGS_insecure,
          .max_connection_age = absl::Seconds(FLAGS_connection_age),
          .health_port = FLAGS_health_port,
          .port_file = FLAGS_port_file};
}

}  // namespace cadre
