// cadre-coordinator: opens the store and serves until SIGTERM.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/daemon/program.h"
#include "base/daemon/server_flags.h"
#include "base/file_limit.h"
#include "base/program_flags.h"
#include "base/protocol.h"
#include "base/rpc/certificate_metrics.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_log.h"
#include "base/rpc/notify.h"
#include "base/status.h"
#include "coordinator/dashboard/dashboard.h"
#include "coordinator/failover.h"
#include "coordinator/measured_planning.h"
#include "coordinator/service/run_metrics.h"
#include "coordinator/service/service.h"
#include "coordinator/store/postgres_connection.h"
#include "coordinator/store/sqlite_store.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "model/validate.h"
#include "plan/plan.h"
#include "plan/search/planner.h"

DEFINE_string(listen, "127.0.0.1:7000", "host:port to listen on; port 0 picks a free port");
DEFINE_string(store, "cadre-coordinator.db",
              "file for runs, groups and commits, created if missing; or "
              "postgresql://[USER@]HOST[:PORT]/DATABASE, a database that coordinators share, of "
              "which one leads and the others stand by");
DEFINE_string(advertise, "",
              "host:port at which members reach this coordinator, which standbys name; empty: the "
              "listen address");
DEFINE_string(dashboard_listen, "",
              "loopback host:port for the dashboard over HTTP, without TLS; empty: none");
DEFINE_string(dashboard_host, "",
              "name under which a browser may reach the dashboard, such as that of a proxy, in "
              "addition to its address; may be repeated");
DEFINE_int32(lease_ms, 10'000,
             "milliseconds without a message after which a member is dropped; heartbeats are sent "
             "every quarter of it");
DEFINE_string(
    keep_runs_for, "0",
    "time after their end for which runs with a version are kept, such as 720h; then they "
    "are deleted, with their files on the aggregators. 0: until 'cadre delete'");
DEFINE_uint64(keep_runs_bytes, 0,
              "bytes that the versions of all runs that have ended may take on the aggregators; "
              "beyond it, those that ended first are deleted. 0: no limit");
DEFINE_string(removal_notice, "1h",
              "time before which the deletion of a run by --keep-runs-for or --keep-runs-bytes is "
              "announced, in its status and as an event");
DEFINE_int32(keep_runs_without_version, cadre::RetentionPolicy().keep_without_version,
             "number of runs that ended without a version whose records are kept, the newest");
DEFINE_int32(max_live_runs, cadre::CoordinatorOptions().max_live_runs,
             "limit of runs that have not ended; further submissions are refused");
DEFINE_string(
    aggregator_patience, "1h",
    "time for which the groups of a run wait for an aggregator that is away, before their "
    "generations end; from 1s to 24h");
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
    "from its store. SIGTERM stops it. Coordinators with the same --store=postgresql://... stand "
    "by\n"
    "for each other; give the others --coordinator=HOST:7000,HOST2:7000.\n\n"
    "Exit codes: 0 stopped, 1 failure (the reason is the last line on stderr), 2 invalid flags.";

constexpr Program kProgram{.name = "cadre-coordinator",
                           .usage = kUsage,
                           .version = kVersion,
                           .source = "coordinator/main.cc"};

// Health checks for this service ask whether the coordinator leads or could take the lead. It could
// not if it does not reach the shared database; restarting it would not help.
constexpr char kReadiness[] = "readiness";
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
  absl::ParseDuration(FLAGS_keep_runs_for, &machine.retention.keep_for);
  absl::ParseDuration(FLAGS_removal_notice, &machine.retention.notice);
  absl::ParseDuration(FLAGS_aggregator_patience, &machine.aggregator_patience);
  machine.retention.keep_bytes = FLAGS_keep_runs_bytes;
  machine.retention.keep_without_version = FLAGS_keep_runs_without_version;
  machine.max_live_runs = FLAGS_max_live_runs;
  machine.keep_commits = FLAGS_keep_commits;
  machine.version = kVersion;
  machine.insecure = FLAGS_insecure;
  std::random_device entropy;
  for (char& byte : machine.key_seed) byte = static_cast<char>(entropy());
  return options;
}

absl::Status CheckDuration(const char* flag, const std::string& text) {
  absl::Duration duration;
  if (absl::ParseDuration(text, &duration) && duration >= absl::ZeroDuration() &&
      duration < absl::InfiniteDuration()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " must be a duration, such as 720h or 30m, or 0, but is '", text, "'"));
}

absl::Status CheckFlags() {
  if (FLAGS_lease_ms < 100) return absl::InvalidArgumentError("--lease-ms must be at least 100");
  CADRE_RETURN_IF_ERROR(CheckDuration("--keep-runs-for", FLAGS_keep_runs_for));
  CADRE_RETURN_IF_ERROR(CheckDuration("--removal-notice", FLAGS_removal_notice));
  CADRE_RETURN_IF_ERROR(CheckDuration("--aggregator-patience", FLAGS_aggregator_patience));
  absl::Duration patience;
  absl::ParseDuration(FLAGS_aggregator_patience, &patience);
  if (patience < absl::Seconds(1) || patience > absl::Hours(24)) {
    return absl::InvalidArgumentError("--aggregator-patience must be from 1s to 24h");
  }
  if (FLAGS_keep_runs_without_version < 0) {
    return absl::InvalidArgumentError("--keep-runs-without-version must not be negative");
  }
  if (FLAGS_max_live_runs < 1)
    return absl::InvalidArgumentError("--max-live-runs must be positive");
  if (FLAGS_keep_commits < 2)
    return absl::InvalidArgumentError("--keep-commits must be at least 2");
  if (absl::StrContains(FLAGS_store, "://") && !IsPostgresUrl(FLAGS_store)) {
    return absl::InvalidArgumentError("--store must be a file or postgresql://...");
  }
  return CheckServerFlags();
}

// Ready: the loop turns. It ends with the first failure to write the store.
absl::Status Ready(CoordinatorService& service) {
  return service.Read([](const Machine&, absl::Time) {}, kReadTimeout);
}

// `can_lead`: whether a coordinator that does not lead can take the lead.
void Collect(CoordinatorService& service, const Daemon& daemon, const Credentials& credentials,
             bool can_lead, Metrics& metrics) {
  service
      .Read([&](const Machine& machine, absl::Time now) { CollectMachine(machine, now, metrics); },
            kReadTimeout)
      .IgnoreError();
  const std::shared_ptr<Loop> loop = service.loop();
  metrics.Gauge("cadre_coordinator_leads", "Whether this coordinator leads; others stand by.",
                loop != nullptr ? 1 : 0);
  if (loop != nullptr) {
    metrics.AddHistogram("cadre_loop_turn_seconds",
                         "Time in which the event loop handled what had arrived.",
                         loop->turns().Read());
    metrics.AddHistogram("cadre_store_commit_seconds",
                         "Time to make a transaction of the store durable.",
                         loop->commits().Read());
  }
  if (IsPostgresUrl(FLAGS_store)) {
    metrics.Gauge("cadre_coordinator_standby",
                  "Whether this coordinator stands by and reaches the shared database.",
                  loop == nullptr && can_lead ? 1 : 0);
  } else {
    metrics.AddDisk(FLAGS_store);
  }
  AddCertificate(credentials, metrics);
  daemon.calls().Collect(metrics);
}

// The first failure of the event loop's thread, which ends the process.
class Failure {
 public:
  void Set(const absl::Status& status) {
    if (failed_.HasBeenNotified()) return;
    status_ = status;
    failed_.Notify();
    RequestTermination();
  }
  absl::Status status() const { return failed_.HasBeenNotified() ? status_ : absl::OkStatus(); }

 private:
  absl::Status status_;
  absl::Notification failed_;
};

absl::StatusOr<std::unique_ptr<Dashboard>> StartDashboard(CoordinatorService& service) {
  if (FLAGS_dashboard_listen.empty()) return nullptr;
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Dashboard> dashboard,
                         Dashboard::Start({.listen = FLAGS_dashboard_listen,
                                           .insecure = FLAGS_insecure,
                                           .hosts = AllValues("dashboard_host")},
                                          service));
  LOG(INFO) << "dashboard on http://" << dashboard->address() << "/";
  return dashboard;
}

Loop::Options ServiceOptions(const Planning& planning, Failure& failure) {
  Loop::Options options = MakeOptions(planning);
  // A coordinator that cannot write its store must not decide anything: it ends and is restarted.
  // With a shared database, Failover sees the failure.
  if (!IsPostgresUrl(FLAGS_store)) {
    options.on_failure = [&failure](const absl::Status& status) { failure.Set(status); };
  }
  // One that accepts no connections loses its members one after another; the event is stored before
  // it ends.
  options.find_limit = [&failure] {
    const absl::Status accepting = CheckAccepting();
    if (accepting.ok()) return std::string(CheckFreeDescriptor().message());
    failure.Set(accepting);
    return std::string(accepting.message());
  };
  return options;
}

// The folder of temporary files receives the backups of a shared database, under a name that other
// users cannot predict.
Failover::Options FailoverOptions(Daemon& daemon, std::atomic<bool>& can_lead) {
  std::random_device entropy;
  const std::string name = absl::StrFormat("cadre-coordinator-%08x%08x%08x%08x.backup", entropy(),
                                           entropy(), entropy(), entropy());
  return {.url = FLAGS_store,
          .address = FLAGS_advertise.empty() ? daemon.address() : FLAGS_advertise,
          .backup_path = std::filesystem::temp_directory_path() / name,
          .on_read =
              [&](bool read) {
                if (can_lead.exchange(read) != read) daemon.SetServing(kReadiness, read);
              },
          .wait = [](absl::Duration limit) { return WaitForTermination(limit) != 0; }};
}

// Serves until the process has to end.
absl::Status ServeUntilEnd(Failover* failover) {
  if (failover != nullptr) {
    CADRE_ASSIGN_OR_RETURN(const bool opened, failover->Open());
    if (!opened) return absl::OkStatus();
  }
  NotifyReady();
  if (failover != nullptr) return failover->Run();
  WaitForTermination();
  return absl::OkStatus();
}

absl::Status Serve(const Credentials& credentials) {
  std::unique_ptr<SqliteStore> file;
  std::optional<Failover> failover;
  const bool shared = IsPostgresUrl(FLAGS_store);
  if (!shared) {
    CADRE_ASSIGN_OR_RETURN(file, SqliteStore::Open({.path = FLAGS_store}));
  }
  const MeasuredPlanning planning;
  Failure failure;
  CoordinatorService service(ServiceOptions(planning, failure), credentials);
  if (!shared) CADRE_RETURN_IF_ERROR(service.Start(file.get(), FLAGS_store + ".backup"));
  DaemonOptions server = ServerOptions(FLAGS_listen, credentials);
  server.bulk_data = false;
  CADRE_ASSIGN_OR_RETURN(const auto daemon, Daemon::Start(server, service.services()));
  std::atomic<bool> can_lead = !shared;
  daemon->SetServing(kReadiness, can_lead);
  const auto collect = [&](Metrics& all) { Collect(service, *daemon, credentials, can_lead, all); };
  CADRE_ASSIGN_OR_RETURN(auto metrics,
                         kProgram.StartMetrics([&] { return Ready(service); }, collect));
  CADRE_ASSIGN_OR_RETURN(auto dashboard, StartDashboard(service));
  LOG(INFO) << "listening on " << daemon->address() << ", store "
            << (shared ? "in a shared database" : FLAGS_store);
  if (shared) failover.emplace(FailoverOptions(*daemon, can_lead), service);
  const absl::Status served = ServeUntilEnd(failover.has_value() ? &*failover : nullptr);
  LOG(INFO) << "stopping";
  metrics.reset();
  dashboard.reset();
  service.Drain();
  if (failover.has_value()) failover->Release();
  daemon->Drain(kDrain);
  return served.ok() ? failure.status() : served;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  using cadre::kProgram;
  if (const auto ended = kProgram.Start(&argc, &argv)) return *ended;
  if (const absl::Status flags = cadre::CheckFlags(); !flags.ok()) {
    return kProgram.Fail(cadre::kExitBadFlags, flags.message());
  }
  const auto credentials =
      cadre::Credentials::FromFlags(FLAGS_tls, FLAGS_insecure, cadre::Role::kCoordinator);
  if (!credentials.ok()) {
    return kProgram.Fail(cadre::kExitBadFlags, credentials.status().message());
  }
  const absl::Status served = cadre::Serve(*credentials);
  return served.ok() ? 0 : kProgram.Fail(1, served.message());
}
