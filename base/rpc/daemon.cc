// The life of a daemon: block the signals, start the server, wait for a signal, drain.
//
// The port file is written after the server listens, so a script that finds the file can connect.
// A drain first reports NOT_SERVING, so that load balancers send no further calls, then lets calls
// in flight end within the grace period and cancels the others.
#include "base/rpc/daemon.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/file_limit.h"
#include "base/host_port.h"
#include "base/rpc/access.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_log.h"
#include "base/status.h"
#include "base/thread_limit.h"

namespace cadre {
namespace {

// Largest message that gRPC accepts. It ends the stream of a larger one without a reason; services
// refuse messages over kMaxMessageBytes by name.
constexpr int kMaxReceiveBytes = kMaxMessageBytes + (1 << 20);
// Names a service.
constexpr int kMaxHealthRequestBytes = 1 << 10;
// A member uses a few streams of a connection, a caller one or two.
constexpr int kMaxStreamsOfConnection = 128;

// gRPC varies the age by a tenth, so that connections do not end simultaneously.
void LimitConnectionAge(absl::Duration age, grpc::ServerBuilder& builder) {
  const absl::Duration grace = std::min(age, kMaxStreamGrace);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(age)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(grace)));
}

sigset_t TerminationSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

absl::Status CheckListenAddress(const std::string& listen, bool insecure) {
  CADRE_ASSIGN_OR_RETURN(const HostPort address, SplitHostPort(listen, "listen address"));
  if (insecure || IsLoopback(address.host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("refusing to listen on ", listen,
                   " without TLS; use a loopback address, or pass --insecure if the network is "
                   "trusted"));
}

struct Daemon::HealthServer {
  // Refuses all methods that no service has. gRPC does not start a server without any service.
  grpc::CallbackGenericService nothing;
  std::unique_ptr<grpc::Server> server;
};

// Ports of one gRPC server offer all of its services, so health checks need a server of their own.
absl::StatusOr<std::unique_ptr<Daemon::HealthServer>> Daemon::StartHealthServer(
    const std::string& address) {
  auto health = std::make_unique<HealthServer>();
  grpc::ServerBuilder builder;
  Configure(builder);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // gRPC reads a request before it looks for the method.
  builder.SetMaxReceiveMessageSize(kMaxHealthRequestBytes);
  builder.RegisterCallbackGenericService(&health->nothing);
  int port = 0;
  builder.AddListeningPort(address, Credentials::Insecure().server(), &port);
  health->server = builder.BuildAndStart();
  if (health->server != nullptr && port != 0) return health;
  return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", address,
                                               " for health checks: the port is in use or not "
                                               "permitted"));
}

Daemon::Daemon(std::unique_ptr<CallMetrics> calls, std::unique_ptr<grpc::Server> server,
               std::unique_ptr<HealthServer> health, std::string address, int port)
    : calls_(std::move(calls)),
      server_(std::move(server)),
      health_(std::move(health)),
      address_(std::move(address)),
      port_(port) {}

Daemon::~Daemon() { Drain(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options,
                                                      std::vector<grpc::Service*> services) {
  RaiseDescriptorLimit();
  CADRE_RETURN_IF_ERROR(ReserveDescriptors(kMemberDescriptors));
  CADRE_RETURN_IF_ERROR(ReserveThreads(kMemberThreads));
  CADRE_RETURN_IF_ERROR(
      CheckListenAddress(options.listen, options.insecure || options.credentials.secure()));
  CADRE_ASSIGN_OR_RETURN(const HostPort listen, SplitHostPort(options.listen, "listen address"));
  // Without TLS it is not used, but methods whose callers are not stated are an error all the same.
  const std::string trust_domain =
      options.credentials.secure() ? options.credentials.identity().trust_domain : "";
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<AccessPolicy> access,
                         AccessPolicy::Make(trust_domain));
  LimitGrpcLog();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  Configure(builder);
  builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
  // With SO_REUSEPORT two daemons on one port would share its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, options.bulk_data ? 1 : 0);
  if (options.credentials.secure()) LimitConnectionAge(options.max_connection_age, builder);
  grpc::ResourceQuota quota("daemon");
  quota.Resize(options.memory_quota_bytes);
  builder.SetResourceQuota(quota);
  int port = 0;
  // Minimal containers have no hosts file to resolve localhost.
  const std::string host =
      absl::EqualsIgnoreCase(listen.host, "localhost") ? "127.0.0.1" : listen.host;
  const std::string bind = absl::StrCat(host, ":", listen.port);
  builder.AddListeningPort(bind, options.credentials.server(access), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  auto calls = std::make_unique<CallMetrics>();
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(calls->MakeInterceptors());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen on ", options.listen, ": the port is in use or not permitted"));
  }
  std::unique_ptr<HealthServer> health;
  if (options.health_port != 0) {
    CADRE_ASSIGN_OR_RETURN(health, StartHealthServer(absl::StrCat(host, ":", options.health_port)));
  }
  if (!options.port_file.empty()) {
    CADRE_RETURN_IF_ERROR(WriteFileAtomically(options.port_file, absl::StrCat(port, "\n")));
  }
  return std::unique_ptr<Daemon>(new Daemon(std::move(calls), std::move(server), std::move(health),
                                            absl::StrCat(listen.host, ":", port), port));
}

std::vector<grpc::HealthCheckServiceInterface*> Daemon::HealthServices() const {
  std::vector<grpc::HealthCheckServiceInterface*> services;
  for (grpc::Server* server : {server_.get(), health_ ? health_->server.get() : nullptr}) {
    if (server == nullptr) continue;
    if (auto* health = server->GetHealthCheckService(); health != nullptr) {
      services.push_back(health);
    }
  }
  return services;
}

void Daemon::SetServing(const std::string& service, bool serving) {
  for (auto* health : HealthServices()) health->SetServingStatus(service, serving);
}

void Daemon::Drain(absl::Duration grace) {
  if (server_ == nullptr) return;
  for (auto* health : HealthServices()) health->SetServingStatus(false);
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_.reset();
  // Until here probes read NOT_SERVING.
  if (health_ != nullptr) health_->server->Shutdown(absl::ToChronoTime(absl::Now()));
  health_.reset();
}

void BlockTerminationSignals() {
  const sigset_t set = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Without SIGPIPE, a write to a closed socket returns an error instead of ending the process.
  signal(SIGPIPE, SIG_IGN);
  // The same for a write beyond the limit of the file size.
  signal(SIGXFSZ, SIG_IGN);
}

void UnblockTerminationSignals() {
  const sigset_t set = TerminationSignals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Requires: the signals are blocked in every thread (BlockTerminationSignals); otherwise a signal
// ends the process.
int WaitForTermination(absl::Duration timeout) {
  const sigset_t set = TerminationSignals();
  const timespec limit = absl::ToTimespec(std::min(timeout, absl::Hours(24 * 365)));
  while (true) {
    const int number = sigtimedwait(&set, nullptr, &limit);
    if (number > 0) return number;
    if (errno == EAGAIN && timeout < absl::InfiniteDuration()) return 0;
  }
}

void RequestTermination() { kill(getpid(), SIGTERM); }

}  // namespace cadre
