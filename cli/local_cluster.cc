// The processes find each other without fixed ports: the coordinator listens on a port that the
// kernel picks and writes it to a file; all others receive its address as a flag and register their
// own. After a restart the coordinator must keep its port, because the others reconnect to it. An
// aggregator must keep its name and folder, because they identify its data. A worker has no state:
// a restarted one joins as a new member.
//
// The cluster fails if a process ends too often, or with an exit code that shows that a restart
// cannot help (wrong flags, refused by the coordinator). The error quotes the end of its log.
#include "cli/local_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/counted_noun.h"
#include "base/file.h"
#include "base/rpc/certificate_folder.h"
#include "base/status.h"

namespace cadre {
namespace {

// A coordinator that does not listen after this time has failed.
constexpr absl::Duration kStartTimeout = absl::Seconds(20);
// Time that a process has to end after SIGTERM; longer than daemons wait for calls in flight.
constexpr absl::Duration kStopTimeout = absl::Seconds(8);
constexpr absl::Duration kPollInterval = absl::Milliseconds(10);
// Lines of a log that an error shows.
constexpr int kShownLines = 5;
// Exit codes after which a restart is useless.
constexpr int kBadFlags = 2;
constexpr int kPermanentFailure = 64;

bool IsFinal(const Ending& ending) {
  return !ending.signalled && (ending.code == kBadFlags || ending.code == kPermanentFailure);
}

void AddRoots(absl::string_view flag, const std::vector<std::string>& roots,
              std::vector<std::string>& arguments) {
  for (const std::string& root : roots) arguments.push_back(absl::StrCat(flag, root));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(LocalClusterOptions options) {
  auto cluster = std::unique_ptr<LocalCluster>(new LocalCluster(std::move(options)));
  CADRE_RETURN_IF_ERROR(MakeFolder(cluster->logs()));
  CADRE_RETURN_IF_ERROR(cluster->MakeCertificates());
  CADRE_RETURN_IF_ERROR(cluster->StartCoordinator());
  CADRE_RETURN_IF_ERROR(cluster->StartAggregators());
  CADRE_RETURN_IF_ERROR(cluster->StartWorkers());
  return cluster;
}

LocalCluster::~LocalCluster() { Shutdown(); }

// Certificates of an earlier cluster in the same folder are replaced.
absl::Status LocalCluster::MakeCertificates() {
  if (options_.insecure) return absl::OkStatus();
  const std::string authority = TlsOf("authority");
  CADRE_RETURN_IF_ERROR(WriteAuthority(authority, {.replace = true}));
  const auto issue = [&](Role role, const std::string& name) {
    return WriteCredentials(
        authority,
        {.role = role, .name = name, .dns = {"localhost"}, .ips = {"127.0.0.1"}, .replace = true},
        TlsOf(name));
  };
  CADRE_RETURN_IF_ERROR(issue(Role::kOperator, "operator"));
  CADRE_RETURN_IF_ERROR(issue(Role::kCoordinator, "coordinator"));
  for (uint32_t i = 0; i < options_.aggregators; ++i) {
    CADRE_RETURN_IF_ERROR(issue(Role::kAggregator, absl::StrCat("aggregator-", i)));
  }
  for (uint32_t i = 0; i < options_.workers; ++i) {
    CADRE_RETURN_IF_ERROR(issue(Role::kWorker, absl::StrCat("worker-", i)));
  }
  CADRE_ASSIGN_OR_RETURN(credentials_, Credentials::FromFolder(TlsOf("operator")));
  return absl::OkStatus();
}

absl::Status LocalCluster::StartCoordinator() {
  const std::string port_file = options_.folder + "/coordinator.port";
  CADRE_RETURN_IF_ERROR(AddMember(
      {.name = "coordinator",
       .program = options_.programs + "/cadre-coordinator",
       .arguments = {"--listen=127.0.0.1:0", absl::StrCat("--store=", options_.folder, "/store.db"),
                     absl::StrCat("--port-file=", port_file),
                     absl::StrCat("--lease-ms=", absl::ToInt64Milliseconds(options_.lease)),
                     "--logtostderr"}}));
  CADRE_RETURN_IF_ERROR(WaitForPort(members_.back(), port_file));
  // After a restart it must listen on the same port.
  members_.back().arguments[0] = absl::StrCat("--listen=", coordinator_);
  return absl::OkStatus();
}

// Waits for the port file, which appears when the coordinator listens. Until then its process is
// checked as well, so that a failing coordinator is reported with its own message, not as a
// timeout.
absl::Status LocalCluster::WaitForPort(Member& coordinator, const std::string& port_file) {
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (absl::Now() < deadline) {
    if (absl::StatusOr<std::string> port = ReadFile(port_file); port.ok()) {
      coordinator_ = absl::StrCat("127.0.0.1:", absl::StripAsciiWhitespace(*port));
      return absl::OkStatus();
    }
    if (const auto ending = coordinator.process->Poll()) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator did not start (", ending->ToString(),
                       "): ", absl::StrJoin(LastLines(LogOf(coordinator), 1), "")));
    }
    absl::SleepFor(kPollInterval);
  }
  return absl::UnavailableError(absl::StrCat("the coordinator does not listen after ",
                                             absl::FormatDuration(kStartTimeout), "; its log is ",
                                             LogOf(coordinator)));
}

// Each aggregator has a folder named after it, which it finds again after a restart.
absl::Status LocalCluster::StartAggregators() {
  for (uint32_t i = 0; i < options_.aggregators; ++i) {
    const std::string name = absl::StrCat("aggregator-", i);
    const std::string data = absl::StrCat(options_.folder, "/", name);
    CADRE_RETURN_IF_ERROR(MakeFolder(data));
    Member aggregator{
        .name = name,
        .program = options_.programs + "/cadre-aggregator",
        .arguments = {"--listen=127.0.0.1:0", absl::StrCat("--coordinator=", coordinator_),
                      absl::StrCat("--data-dir=", data), absl::StrCat("--name=", name),
                      "--logtostderr"}};
    AddRoots("--checkpoint-root=", options_.checkpoint_roots, aggregator.arguments);
    CADRE_RETURN_IF_ERROR(AddMember(std::move(aggregator)));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartWorkers() {
  for (uint32_t i = 0; i < options_.workers; ++i) {
    const std::string name = absl::StrCat("worker-", i);
    Member worker{
        .name = name,
        .program = options_.programs + "/cadre-worker",
        .arguments = {absl::StrCat("--coordinator=", coordinator_), "--listen=127.0.0.1:0",
                      absl::StrCat("--name=", name), absl::StrCat("--threads=", options_.threads),
                      // The run has ended, or its user has ended it.
                      "--drain-timeout=0", "--logtostderr"}};
    AddRoots("--data-root=", options_.data_roots, worker.arguments);
    AddRoots("--checkpoint-root=", options_.checkpoint_roots, worker.arguments);
    const std::optional<int> node =
        NumaNodeOfProcess(options_.numa_nodes, i, options_.workers, options_.threads);
    if (options_.device == "cpu") {
      if (node) worker.arguments.push_back(absl::StrCat("--numa-node=", *node));
    } else {
      worker.arguments.push_back(absl::StrCat("--device=", options_.device));
      worker.environment.push_back(absl::StrCat("NCCL_HOSTID=", name));
    }
    CADRE_RETURN_IF_ERROR(AddMember(std::move(worker)));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::AddMember(Member member) {
  member.arguments.push_back(options_.insecure ? "--insecure"
                                               : absl::StrCat("--tls=", TlsOf(member.name)));
  members_.push_back(std::move(member));
  return StartMember(members_.back());
}

absl::Status LocalCluster::StartMember(Member& member) {
  CADRE_ASSIGN_OR_RETURN(Process process, Process::Start({.program = member.program,
                                                          .arguments = member.arguments,
                                                          .environment = member.environment,
                                                          .log = LogOf(member)}));
  member.process.emplace(std::move(process));
  return absl::OkStatus();
}

absl::Status LocalCluster::Supervise() {
  for (Member& member : members_) CADRE_RETURN_IF_ERROR(Check(member));
  return absl::OkStatus();
}

// An exit of a member is an error only if a restart is not permitted or cannot help.
absl::Status LocalCluster::Check(Member& member) {
  if (!member.process || member.IsRunning()) return absl::OkStatus();
  const std::optional<Ending> ending = member.process->Poll();
  const bool again =
      options_.restart && !IsFinal(*ending) && member.restarts < options_.max_restarts;
  if (!again) {
    const int count = member.restarts;
    return absl::AbortedError(
        absl::StrCat(member.name, " ended (", ending->ToString(), ")",
                     count > 0 ? absl::StrCat(" after ", Counted(count, "restart")) : std::string(),
                     "; the end of ", LogOf(member), ":\n  ",
                     absl::StrJoin(LastLines(LogOf(member), kShownLines), "\n  ")));
  }
  ++member.restarts;
  CADRE_RETURN_IF_ERROR(StartMember(member));
  Note(absl::StrCat(member.name, " ended (", ending->ToString(), ") and was restarted (",
                    member.restarts, " of at most ", options_.max_restarts, " times)"));
  return absl::OkStatus();
}

// Workers end first, so that they can deregister while the coordinator still listens. The
// coordinator ends last, so that the final state of the run is in its store.
void LocalCluster::Shutdown() {
  const size_t aggregators = std::min<size_t>(1, members_.size());
  const size_t workers = std::min<size_t>(1 + options_.aggregators, members_.size());
  End(workers, members_.size());
  End(aggregators, workers);
  End(0, aggregators);
}

// All members of a kind are signalled before any is waited for, so that they end in parallel.
void LocalCluster::End(size_t begin, size_t end) {
  const std::span<Member> members(members_.begin() + begin, members_.begin() + end);
  const auto running = [&] {
    return std::any_of(members.begin(), members.end(),
                       [](Member& each) { return each.IsRunning(); });
  };
  for (Member& member : members) {
    if (member.process) member.process->Signal(SIGTERM);
  }
  const absl::Time deadline = absl::Now() + kStopTimeout;
  while (running() && absl::Now() < deadline && !(options_.hurry && options_.hurry())) {
    absl::SleepFor(kPollInterval);
  }
  for (Member& member : members) {
    if (member.IsRunning()) Note(absl::StrCat(member.name, " did not end after SIGTERM; killed"));
    member.process.reset();
  }
}

std::string LocalCluster::LogOf(const Member& member) const {
  return absl::StrCat(logs(), "/", member.name, ".log");
}

void LocalCluster::Note(absl::string_view line) const {
  if (options_.note) options_.note(line);
}

}  // namespace cadre
