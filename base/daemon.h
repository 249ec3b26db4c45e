// What every long-running program does alike: start a gRPC server with health service, say where it
// listens, wait for SIGTERM or SIGINT, drain, stop.
//
//   DaemonOptions options{.listen = "127.0.0.1:0"};
//   auto daemon = Daemon::Start(options, {&service});
//   WaitForTermination();            // signals blocked since BlockTerminationSignals()
//   daemon->Drain(absl::Seconds(3));
#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre {

struct DaemonOptions {
  // host:port; port 0 takes a free one.
  std::string listen = "127.0.0.1:0";
  // Listening beyond loopback without TLS must be asked for plainly.
  bool insecure = false;
  // Written with the port actually taken, once the server listens; empty: no file.
  std::string port_file;
  // Largest message that gRPC takes in. A service that wants to refuse by name what is over
  // kMaxMessageBytes (base/grpc_channel.h), and not have the stream broken under it, takes in more.
  // 0: kMaxMessageBytes.
  int receive_bytes = 0;
  // Bytes that gRPC may hold for all calls together before it makes peers wait; 0: no limit.
  size_t memory_quota_bytes = 0;
};

// Thread-safe after Start.
class Daemon {
 public:
  // Services are borrowed and must outlive the daemon.
  // Errors: AlreadyExists for a taken port; InvalidArgument for a listen address that is malformed
  // or beyond loopback without `insecure`.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options,
                                                       std::vector<grpc::Service*> services);
  ~Daemon();

  int port() const { return port_; }
  // The host of `listen` with the port actually taken.
  const std::string& address() const { return address_; }

  // Health goes to NOT_SERVING, calls in flight get `grace` to end, the rest are cancelled.
  void Drain(absl::Duration grace);

 private:
  Daemon(std::unique_ptr<grpc::Server> server, std::string address, int port);

  std::unique_ptr<grpc::Server> server_;
  const std::string address_;
  const int port_;
};

// Must be called before any thread is made, so that only WaitForTermination sees the signals.
void BlockTerminationSignals();
// From now on SIGTERM and SIGINT end the process again.
void UnblockTerminationSignals();
// Waits for SIGTERM or SIGINT and returns its number.
int WaitForTermination();
// Makes WaitForTermination return, from any thread.
void RequestTermination();

}  // namespace cadre
