// cadre-aggregator: stores one shard of each run's model and averages the groups' contributions to
// it.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <iostream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/http/metrics_server.h"
#include "base/peer_text.h"
#include "base/program_flags.h"
#include "base/rooted_files.h"
#include "base/rpc/daemon.h"
#include "base/rpc/json_log.h"
#include "base/rpc/notify.h"
#include "server/aggregator.h"

DEFINE_string(listen, "127.0.0.1:0", "host:port to listen on; port 0 picks a free port");
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
DEFINE_string(advertise, "",
              "host:port where workers reach this aggregator; empty: the listen address");
DEFINE_string(coordinator, "127.0.0.1:7000", "host:port of the coordinator");
DEFINE_string(data_dir, "", "folder for versions and contributions; must persist across restarts");
DEFINE_string(name, "",
              "unique name of [a-z0-9._-], the identity of this aggregator across restarts");
DEFINE_string(
    checkpoint_root, "",
    "folder beneath which runs may start from checkpoints; may be repeated; default: none");

DEFINE_string(port_file, "", "file that receives the port once the server listens");
DEFINE_int32(dial_timeout, 30, "seconds to wait for the coordinator at startup");
DEFINE_string(metrics_listen, "",
              "host:port for /metrics, /healthz and /readyz over HTTP, without TLS; empty: none");
DEFINE_string(log_format, "text", "format of the log on stderr: text or json");
DEFINE_int32(drain, 5, "seconds that open streams have to finish after SIGTERM");
DEFINE_int32(
    keep_closed_runs, cadre::kMaxClosedRuns,
    "limit of the ended runs whose files this aggregator keeps, the newest; the coordinator "
    "(its --keep-closed-runs) may order that fewer are kept");
DEFINE_bool(archive, false,
            "keep the contributions of which versions are made, so that 'cadre replay' can compute "
            "the versions again; they take disk space until their run is removed");
DEFINE_int32(disk_threads, 4, "threads for disk I/O");
DEFINE_int32(max_streams, 64,
             "limit of concurrent contributions, and separately of concurrent pulls");

namespace {

constexpr char kUsage[] =
    "stores one shard of every run's model on disk and averages the contributions of the groups.\n"
    "\n"
    "  cadre-aggregator --coordinator=HOST:PORT --data-dir=DIR --name=NAME --tls=DIR\n"
    "\n"
    "Start any number of them, each with its own name and folder; a run is divided among those "
    "that\n"
    "are connected when it starts. A killed aggregator continues when it is restarted with the "
    "same\n"
    "name and folder. SIGTERM drains it.\n"
    "\n"
    "Exit codes: 0 stopped, 1 failure (also if files were removed or damaged: start it again), 2 "
    "invalid\n"
    "flags, 4 no coordinator answered, 64 permanently refused by the coordinator.";

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitNoCoordinator = 4;
constexpr int kExitRefused = 64;

int Fail(int code, absl::string_view reason) {
  std::cerr << "cadre-aggregator: " << reason << std::endl;
  return code;
}

int Fail(const absl::Status& status) {
  if (absl::IsPermissionDenied(status)) return Fail(kExitRefused, status.message());
  return Fail(absl::IsUnavailable(status) ? kExitNoCoordinator : kExitFailure, status.message());
}

std::string WrongFlag() {
  if (FLAGS_data_dir.empty()) return "--data-dir is required: a persistent folder";
  if (FLAGS_name.empty()) return "--name is required: the aggregator's identity across restarts";
  if (const absl::Status named = cadre::CheckName("--name", FLAGS_name); !named.ok()) {
    return std::string(named.message());
  }
  if (FLAGS_coordinator.empty()) return "--coordinator is required: host:port";
  if (FLAGS_keep_closed_runs < 0) return "--keep-closed-runs must not be negative";
  if (FLAGS_disk_threads < 1 || FLAGS_disk_threads > 256) return "--disk-threads must be 1 .. 256";
  if (FLAGS_max_streams < 1 || FLAGS_max_streams > 4096) return "--max-streams must be 1 .. 4096";
  if (FLAGS_health_port < 0 || FLAGS_health_port > 65535) return "--health-port must be 0 .. 65535";
  if (FLAGS_connection_age < 1 || FLAGS_connection_age > 604'800) {
    return "--connection-age must be 1 .. 604800";
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  cadre::BlockTerminationSignals();
  if (const auto ended =
          cadre::ParseProgramFlags(kUsage, CADRE_VERSION, "server/main.cc", &argc, &argv)) {
    return *ended;
  }
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  if (const absl::Status format = cadre::SetLogFormat(FLAGS_log_format); !format.ok()) {
    return Fail(kExitUsage, format.message());
  }
  if (const std::string wrong = WrongFlag(); !wrong.empty()) {
    return Fail(kExitUsage, absl::StrCat(wrong, "; see --help"));
  }

  const auto checkpoint_files =
      cadre::RootedFiles::Open("--checkpoint-root", cadre::AllValues("checkpoint_root"));
  if (!checkpoint_files.ok()) return Fail(kExitUsage, checkpoint_files.status().message());
  const auto credentials =
      cadre::Credentials::FromFlags(FLAGS_tls, FLAGS_insecure, cadre::Role::kAggregator);
  if (!credentials.ok()) return Fail(kExitUsage, credentials.status().message());

  auto aggregator = cadre::Aggregator::Start(
      {.server = {.listen = FLAGS_listen,
                  .credentials = *credentials,
                  .insecure = FLAGS_insecure,
                  .max_connection_age = absl::Seconds(FLAGS_connection_age),
                  .health_port = FLAGS_health_port,
                  .port_file = FLAGS_port_file},
       .advertise = FLAGS_advertise,
       .coordinator = FLAGS_coordinator,
       .data_dir = FLAGS_data_dir,
       .name = FLAGS_name,
       .version = CADRE_VERSION,
       .dial_timeout = absl::Seconds(FLAGS_dial_timeout),
       .keep_closed_runs = static_cast<size_t>(FLAGS_keep_closed_runs),
       .archive = FLAGS_archive,
       .checkpoint_files = *checkpoint_files,
       .service = {.disk_threads = FLAGS_disk_threads,
                   .max_stages = FLAGS_max_streams,
                   .max_pulls = FLAGS_max_streams},
       .ended = [] { cadre::RequestTermination(); }});
  if (!aggregator.ok()) return Fail(aggregator.status());
  LOG(INFO) << "aggregator " << FLAGS_name << " listens on " << (*aggregator)->address();
  std::unique_ptr<cadre::HttpServer> metrics;
  if (!FLAGS_metrics_listen.empty()) {
    auto started = cadre::StartMetricsServer(
        {.listen = FLAGS_metrics_listen,
         .ready = [&] { return (*aggregator)->Ready(); },
         .collect = [&](cadre::Metrics& all) { (*aggregator)->Collect(all); },
         .version = CADRE_VERSION});
    if (!started.ok()) return Fail(started.status());
    metrics = *std::move(started);
    LOG(INFO) << "metrics on http://" << metrics->address() << "/metrics";
  }
  cadre::NotifyReady();
  const int signal = cadre::WaitForTermination();
  metrics.reset();
  if (const absl::Status end = (*aggregator)->end(); !end.ok()) return Fail(end);
  LOG(INFO) << "signal " << signal << ": draining";
  (*aggregator)->Drain(absl::Seconds(FLAGS_drain));
  return 0;
}
