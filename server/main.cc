// cadre-aggregator: stores one shard of each run's model and averages the groups' contributions to
// it.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/daemon/program.h"
#include "base/daemon/server_flags.h"
#include "base/peer_text.h"
#include "base/program_flags.h"
#include "base/rooted_files.h"
#include "base/rpc/address_list.h"
#include "base/rpc/daemon.h"
#include "base/rpc/notify.h"
#include "base/status.h"
#include "server/aggregator.h"

DEFINE_string(listen, "127.0.0.1:0", "host:port to listen on; port 0 picks a free port");
DEFINE_string(advertise, "",
              "host:port where workers reach this aggregator; empty: the listen address");
DEFINE_string(
    coordinator, "127.0.0.1:7000",
    "host:port of the coordinator, or of several, separated by commas, of which one leads");
DEFINE_string(data_dir, "", "folder for versions and contributions; must persist across restarts");
DEFINE_string(name, "",
              "unique name of [a-z0-9._-], the identity of this aggregator across restarts");
DEFINE_string(
    checkpoint_root, "",
    "folder beneath which runs may start from checkpoints; may be repeated; default: none");
DEFINE_int32(dial_timeout, 30, "seconds to wait for the coordinator at startup");
DEFINE_int32(
    drain, 5,
    "seconds that open streams have to finish after SIGTERM, when the coordinator's orders "
    "have");
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
    "name and folder. SIGTERM drains it, which ends with exit code 1 if an order of the\n"
    "coordinator takes longer than 40 seconds.\n"
    "\n"
    "Exit codes: 0 stopped, 1 failure (also if files were removed or damaged: start it again), 2 "
    "invalid\n"
    "flags, 4 no coordinator answered, 64 permanently refused by the coordinator.";

constexpr cadre::Program kProgram{.name = "cadre-aggregator",
                                  .usage = kUsage,
                                  .version = CADRE_VERSION,
                                  .source = "server/main.cc"};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitNoCoordinator = 4;
constexpr int kExitRefused = 64;

// The orders that are being carried out after SIGTERM have this time; then streams have --drain.
// Supervisors must wait longer before SIGKILL (deploy/).
constexpr absl::Duration kMaxOrders = absl::Seconds(40);

// What hangs on a disk cannot be interrupted. Another process continues with what is durable.
[[noreturn]] void CutOff(const std::string& unfinished) {
  const int code = kProgram.Fail(kExitFailure, absl::StrCat("ends before this has: ", unfinished));
  google::FlushLogFiles(google::GLOG_INFO);
  std::_Exit(code);
}

int ExitCode(const absl::Status& status) {
  if (absl::IsPermissionDenied(status)) return kExitRefused;
  return absl::IsUnavailable(status) ? kExitNoCoordinator : kExitFailure;
}

std::string WrongFlag() {
  if (FLAGS_data_dir.empty()) return "--data-dir is required: a persistent folder";
  if (FLAGS_name.empty()) return "--name is required: the aggregator's identity across restarts";
  if (const absl::Status named = cadre::CheckName("--name", FLAGS_name); !named.ok()) {
    return std::string(named.message());
  }
  if (FLAGS_coordinator.empty()) return "--coordinator is required: host:port";
  if (const absl::Status listed = cadre::CheckAddresses("--coordinator", FLAGS_coordinator);
      !listed.ok()) {
    return std::string(listed.message());
  }
  if (FLAGS_disk_threads < 1 || FLAGS_disk_threads > 256) return "--disk-threads must be 1 .. 256";
  if (FLAGS_max_streams < 1 || FLAGS_max_streams > 4096) return "--max-streams must be 1 .. 4096";
  return std::string(cadre::CheckServerFlags().message());
}

absl::StatusOr<cadre::AggregatorOptions> OptionsFromFlags() {
  CADRE_ASSIGN_OR_RETURN(
      const cadre::RootedFiles checkpoint_files,
      cadre::RootedFiles::Open("--checkpoint-root", cadre::AllValues("checkpoint_root")));
  CADRE_ASSIGN_OR_RETURN(
      const cadre::Credentials credentials,
      cadre::Credentials::FromFlags(FLAGS_tls, FLAGS_insecure, cadre::Role::kAggregator));
  return cadre::AggregatorOptions{.server = cadre::ServerOptions(FLAGS_listen, credentials),
                                  .advertise = FLAGS_advertise,
                                  .coordinator = FLAGS_coordinator,
                                  .data_dir = FLAGS_data_dir,
                                  .name = FLAGS_name,
                                  .version = CADRE_VERSION,
                                  .dial_timeout = absl::Seconds(FLAGS_dial_timeout),
                                  .archive = FLAGS_archive,
                                  .checkpoint_files = checkpoint_files,
                                  .service = {.disk_threads = FLAGS_disk_threads,
                                              .max_stages = FLAGS_max_streams,
                                              .max_pulls = FLAGS_max_streams},
                                  .ended = [] { cadre::RequestTermination(); },
                                  .drain_limit = kMaxOrders + absl::Seconds(FLAGS_drain),
                                  .cut_off = CutOff};
}

absl::Status Serve(const cadre::AggregatorOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const auto aggregator, cadre::Aggregator::Start(options));
  LOG(INFO) << "aggregator " << FLAGS_name << " listens on " << aggregator->address();
  CADRE_ASSIGN_OR_RETURN(
      auto metrics, kProgram.StartMetrics([&] { return aggregator->Ready(); },
                                          [&](cadre::Metrics& all) { aggregator->Collect(all); }));
  cadre::NotifyReady();
  const int signal = cadre::WaitForTermination();
  metrics.reset();
  CADRE_RETURN_IF_ERROR(aggregator->end());
  LOG(INFO) << "signal " << signal << ": draining";
  aggregator->Drain(absl::Seconds(FLAGS_drain));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto ended = kProgram.Start(&argc, &argv)) return *ended;
  if (const std::string wrong = WrongFlag(); !wrong.empty()) {
    return kProgram.Fail(kExitUsage, absl::StrCat(wrong, "; see --help"));
  }
  const auto options = OptionsFromFlags();
  if (!options.ok()) return kProgram.Fail(kExitUsage, options.status().message());
  const absl::Status served = Serve(*options);
  return served.ok() ? 0 : kProgram.Fail(ExitCode(served), served.message());
}
