// Common parts of daemons: a gRPC server with a health service, whose methods can be called only by
// the roles that they permit (base/rpc/access.h; with TLS), a port file, handling of SIGTERM and
// SIGINT, and draining.
//
//   DaemonOptions options{.listen = "127.0.0.1:0"};
//   auto daemon = Daemon::Start(options, {&service});
//   WaitForTermination();            // signals blocked since BlockTerminationSignals()
//   daemon->Drain(absl::Seconds(3));
#pragma once

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/rpc/call_metrics.h"
#include "base/rpc/credentials.h"

namespace cadre {

// Time that streams have to end when their connection has reached its age.
inline constexpr absl::Duration kMaxStreamGrace = absl::Minutes(5);

struct DaemonOptions {
  // host:port; port 0 selects a free port.
  std::string listen = "127.0.0.1:0";
  Credentials credentials = Credentials::Insecure();
  // Permits other addresses than loopback, without TLS.
  bool insecure = false;
  // With TLS, a connection ends after this time, and its peer connects again with the certificates
  // of that time. Streams have the same time again to end by themselves, at most kMaxStreamGrace.
  absl::Duration max_connection_age = absl::Hours(1);
  // Port of a second server at the same host, without TLS, that answers health checks only: probes
  // of Kubernetes have no certificates. 0: none.
  int health_port = 0;
  // File to which the selected port is written once the server listens; empty: no file.
  std::string port_file;
  // Memory that gRPC may use for all calls before it applies backpressure: enough for 128 streams
  // with one chunk in transit.
  size_t memory_quota_bytes = size_t{192} << 20;
  // Whether streams carry bulk data, so that flow control lets peers send as much ahead as the
  // link holds. Otherwise a peer sends at most 64 KiB ahead of the reader of each stream.
  bool bulk_data = true;
};

// OK when a server may listen on `listen` (host:port): the host is a loopback address, or
// `insecure` allows others although there is no TLS. A whole address is parsed, so
// 127.0.0.1.example.com is not a loopback address. Thread-safe. Errors: InvalidArgument, naming
// --insecure; also for an address that is malformed.
absl::Status CheckListenAddress(const std::string& listen, bool insecure);

// Thread-safe after Start.
class Daemon {
 public:
  // Services are borrowed and must outlive the daemon.
  // Errors: Internal for a method that does not state who may call it; AlreadyExists for a taken
  // port; InvalidArgument for a listen address that is malformed, or beyond loopback without TLS
  // and `insecure`.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options,
                                                       std::vector<grpc::Service*> services);
  ~Daemon();

  int port() const { return port_; }
  // The host of `listen` with the selected port.
  const std::string& address() const { return address_; }

  // The calls of the server since its start.
  const CallMetrics& calls() const { return *calls_; }

  // What health checks for this service answer from now on, on both ports. A check without a name
  // is for the process, which serves until it drains. Requires: Drain has not been called.
  void SetServing(const std::string& service, bool serving);

  // Sets the health status to NOT_SERVING and cancels calls that do not end within `grace`.
  void Drain(absl::Duration grace);

 private:
  // A server for health checks only.
  struct HealthServer;

  Daemon(std::unique_ptr<CallMetrics> calls, std::unique_ptr<grpc::Server> server,
         std::unique_ptr<HealthServer> health, std::string address, int port);
  static absl::StatusOr<std::unique_ptr<HealthServer>> StartHealthServer(
      const std::string& address);
  // Those of both ports.
  std::vector<grpc::HealthCheckServiceInterface*> HealthServices() const;

  const std::unique_ptr<CallMetrics> calls_;
  std::unique_ptr<grpc::Server> server_;
  // Null: none.
  std::unique_ptr<HealthServer> health_;
  const std::string address_;
  const int port_;
};

// Call before starting threads, so that only WaitForTermination receives the signals.
void BlockTerminationSignals();
// Undoes BlockTerminationSignals: SIGTERM and SIGINT terminate the process again.
void UnblockTerminationSignals();
// Waits for SIGTERM or SIGINT and returns its number; 0 after `timeout`.
int WaitForTermination(absl::Duration timeout = absl::InfiniteDuration());
// Makes WaitForTermination return. Thread-safe.
void RequestTermination();

}  // namespace cadre
