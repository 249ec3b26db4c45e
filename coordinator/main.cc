// cadre-coordinator: opens the store and serves until SIGTERM.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/file_limit.h"
#include "base/http/metrics_server.h"
#include "base/program_flags.h"
#include "base/protocol.h"
#include "base/rpc/certificate_metrics.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_log.h"
#include "base/rpc/json_log.h"
#include "base/rpc/notify.h"
#include "base/status.h"
#include "coordinator/dashboard/dashboard.h"
#include "coordinator/measured_planning.h"
#include "coordinator/service/run_metrics.h"
#include "coordinator/service/service.h"
#include "coordinator/store/sqlite_store.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "model/validate.h"
#include "plan/plan.h"
#include "plan/search/planner.h"

DEFINE_string(listen, "127.0.0.1:7000", "host:port to listen on; port 0 picks a free port");
DEFINE_string(store, "cadre-coordinator.db",
              "file for runs, groups and commits; created if missing");
DEFINE_string(tls, "",
              "folder with ca.crt, tls.crt and tls.key, see 'cadre help certs'; replaced files are "
              "used without a restart");
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
DEFINE_string(dashboard_listen, "",
              "loopback host:port for the dashboard over HTTP, without TLS; empty: none");
DEFINE_string(dashboard_host, "",
              "name under which a browser may reach the dashboard, such as that of a proxy, in "
              "addition to its address; may be repeated");
DEFINE_string(metrics_listen, "",
              "host:port for /metrics, /healthz and /readyz over HTTP, without TLS; empty: none");
DEFINE_string(log_format, "text", "format of the log on stderr: text or json");
DEFINE_int32(lease_ms, 10'000,
             "milliseconds without a message after which a member is dropped; heartbeats are sent "
             "every quarter of it");
DEFINE_int32(keep_closed_runs, cadre::kKeepClosedRuns,
             "number of runs that are kept after their end, the newest; older ones are deleted, "
             "with their files on the aggregators");
DEFINE_uint32(keep_commits, cadre::CoordinatorOptions().keep_commits,
              "number of commit records of each run that are kept, the newest; at least 2");

namespace cadre {
namespace {

constexpr char kVersion[] = CADRE_VERSION;
constexpr char kUsage[] =
    "Forms groups of workers, assigns shards to aggregators, and runs training on them.\n\n"
    "  cadre-coordinator --listen=0.0.0.0:7000 --store=/var/lib/cadre/coordinator.db --tls=DIR\n\n"
    "Then start cadre-aggregator and cadre-worker with --coordinator=HOST:7000 and submit a\n"
    "run with 'cadre run'. The coordinator may be killed and restarted at any time: runs continue\n"
    "from its store. SIGTERM stops it.\n\n"
    "Exit codes: 0 stopped, 1 failure (the reason is the last line on stderr), 2 invalid flags.";

constexpr absl::Duration kDrain = absl::Seconds(3);
// A loop that does not answer in this time is not ready.
constexpr absl::Duration kReadTimeout = absl::Seconds(2);

uint64_t CountParameters(const v1::RunSpec& spec) {
  const auto index = ParameterIndex::FromModel(spec.model());
  return index.ok() ? index->size() : 0;
}

absl::Status CheckPlanOf(const v1::RunSpec& spec, const v1::Plan& plan) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  return PlanFromProto(plan, graph, ParameterIndex::FromGraph(graph)).status();
}

Loop::Options MakeOptions(const Planning& planning) {
  Loop::Options options;
  Machine::Options& machine = options.machine;
  machine.plan = [](const v1::RunSpec& spec, int ranks) { return MakePlan(spec, ranks); };
  machine.planning = &planning;
  machine.check_plan = CheckPlanOf;
  machine.validate = ValidateRunSpec;
  machine.parameter_count = CountParameters;
  machine.protocol = kProtocol;
  machine.lease = absl::Milliseconds(FLAGS_lease_ms);
  machine.heartbeat = machine.lease / 4;
  machine.keep_closed_runs = FLAGS_keep_closed_runs;
  machine.keep_commits = FLAGS_keep_commits;
  machine.version = kVersion;
  machine.insecure = FLAGS_insecure;
  std::random_device entropy;
  for (char& byte : machine.key_seed) byte = static_cast<char>(entropy());
  return options;
}

int Fail(const absl::Status& status) {
  std::cerr << "cadre-coordinator: " << status.message() << std::endl;
  return 1;
}

// Ready: the loop turns. It ends with the first failure to write the store.
absl::Status Ready(CoordinatorService& service) {
  return service.Read([](const Machine&, absl::Time) {}, kReadTimeout);
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(CoordinatorService& service,
                                                         const Daemon& daemon,
                                                         const Credentials& credentials) {
  const auto collect = [&](Metrics& metrics) {
    service
        .Read(
            [&](const Machine& machine, absl::Time now) { CollectMachine(machine, now, metrics); },
            kReadTimeout)
        .IgnoreError();
    metrics.AddHistogram("cadre_loop_turn_seconds",
                         "Time in which the event loop handled what had arrived.",
                         service.loop().turns().Read());
    metrics.AddHistogram("cadre_store_commit_seconds",
                         "Time to make a transaction of the store durable.",
                         service.loop().commits().Read());
    metrics.AddDisk(FLAGS_store);
    AddCertificate(credentials, metrics);
    daemon.calls().Collect(metrics);
  };
  return StartMetricsServer({.listen = FLAGS_metrics_listen,
                             .ready = [&] { return Ready(service); },
                             .collect = collect,
                             .version = kVersion});
}

int Serve(const Credentials& credentials) {
  auto store = SqliteStore::Open({.path = FLAGS_store});
  if (!store.ok()) return Fail(store.status());
  const MeasuredPlanning planning;
  absl::Status failure;
  absl::Notification failed;
  Loop::Options options = MakeOptions(planning);
  const auto end = [&](const absl::Status& status) {
    if (failed.HasBeenNotified()) return;
    failure = status;
    failed.Notify();
    RequestTermination();
  };
  // A coordinator that cannot write its store must not decide anything: it ends and is restarted.
  options.on_failure = end;
  // One that accepts no connections loses its members one after another; the event is stored before
  // it ends.
  options.find_limit = [&] {
    const absl::Status accepting = CheckAccepting();
    if (!accepting.ok()) end(accepting);
    return std::string((accepting.ok() ? CheckFreeDescriptor() : accepting).message());
  };
  CoordinatorService service(std::move(options), credentials);
  const absl::Status started = service.Start(store->get(), FLAGS_store + ".backup");
  if (!started.ok()) return Fail(started);
  auto daemon = Daemon::Start({.listen = FLAGS_listen,
                               .credentials = credentials,
                               .insecure = FLAGS_insecure,
                               .max_connection_age = absl::Seconds(FLAGS_connection_age),
                               .health_port = FLAGS_health_port,
                               .port_file = FLAGS_port_file},
                              service.services());
  if (!daemon.ok()) return Fail(daemon.status());
  std::unique_ptr<HttpServer> metrics;
  if (!FLAGS_metrics_listen.empty()) {
    auto server = StartMetrics(service, **daemon, credentials);
    if (!server.ok()) return Fail(server.status());
    metrics = *std::move(server);
    LOG(INFO) << "metrics on http://" << metrics->address() << "/metrics";
  }
  std::unique_ptr<Dashboard> dashboard;
  if (!FLAGS_dashboard_listen.empty()) {
    auto page = Dashboard::Start({.listen = FLAGS_dashboard_listen,
                                  .insecure = FLAGS_insecure,
                                  .hosts = AllValues("dashboard_host")},
                                 service);
    if (!page.ok()) return Fail(page.status());
    dashboard = *std::move(page);
    LOG(INFO) << "dashboard on http://" << dashboard->address() << "/";
  }
  LOG(INFO) << "listening on " << (*daemon)->address() << ", store " << FLAGS_store;
  NotifyReady();
  WaitForTermination();
  LOG(INFO) << "stopping";
  metrics.reset();
  dashboard.reset();
  service.Drain();
  (*daemon)->Drain(kDrain);
  return failed.HasBeenNotified() ? Fail(failure) : 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  if (const auto ended = cadre::ParseProgramFlags(cadre::kUsage, cadre::kVersion,
                                                  "coordinator/main.cc", &argc, &argv)) {
    return *ended;
  }
  if (FLAGS_lease_ms < 100) {
    std::cerr << "cadre-coordinator: --lease-ms must be at least 100\n";
    return 2;
  }
  if (FLAGS_keep_closed_runs < 0) {
    std::cerr << "cadre-coordinator: --keep-closed-runs must not be negative\n";
    return 2;
  }
  if (FLAGS_keep_commits < 2) {
    std::cerr << "cadre-coordinator: --keep-commits must be at least 2\n";
    return 2;
  }
  if (FLAGS_health_port < 0 || FLAGS_health_port > 65535) {
    std::cerr << "cadre-coordinator: --health-port must be 0 .. 65535\n";
    return 2;
  }
  if (FLAGS_connection_age < 1 || FLAGS_connection_age > 604'800) {
    std::cerr << "cadre-coordinator: --connection-age must be 1 .. 604800\n";
    return 2;
  }
  cadre::BlockTerminationSignals();
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  if (const absl::Status format = cadre::SetLogFormat(FLAGS_log_format); !format.ok()) {
    cadre::Fail(format);
    return 2;
  }
  const auto credentials =
      cadre::Credentials::FromFlags(FLAGS_tls, FLAGS_insecure, cadre::Role::kCoordinator);
  if (!credentials.ok()) {
    cadre::Fail(credentials.status());
    return 2;
  }
  return cadre::Serve(*credentials);
}
