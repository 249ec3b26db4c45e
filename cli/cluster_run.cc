// A local run starts a small cluster that exists only for this run:
//
//   folder     a temporary one, or --dir; it is kept if the run fails, because it has the logs
//   processes  a coordinator, aggregators and workers (cli/local_cluster.h)
//   run        submitted over gRPC like any other; a second thread follows it (cli/follow.h), so
//              that this thread can supervise the processes at short intervals
//   end        the run has ended, a process failed permanently, the time limit is reached, or an
//              interrupt arrived; in all cases the processes are stopped before the result is
//              reported
//
// The first interrupt stops the processes in order, a second one kills them.
#include "cli/cluster_run.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/counted_noun.h"
#include "base/file_limit.h"
#include "base/hardware.h"
#include "base/status.h"
#include "base/thread_limit.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "cli/render.h"
#include "cli/run_roots.h"
#include "cli/spec_file.h"
#include "cli/work_folder.h"

namespace cadre {
namespace {

// How often processes are checked and progress is drawn.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
// A local coordinator that does not answer within this time is being restarted.
constexpr absl::Duration kDialTimeout = absl::Seconds(1);

void NoteStart(const v1::RunSpec& spec, const LocalCluster& cluster,
               const ClusterRunOptions& options, Progress& progress) {
  progress.Note(absl::StrCat("started ", Counted(spec.cluster().groups(), "group"), " of ",
                             Counted(spec.cluster().ranks_per_group(), "worker"), " and ",
                             Counted(spec.cluster().aggregators(), "aggregator"),
                             "; coordinator at ", cluster.coordinator(),
                             cluster.tls().empty() ? " (insecure)" : ", --tls=", cluster.tls(),
                             ", logs in ", cluster.logs()));
  if (!options.line_before_run.empty()) progress.Note(options.line_before_run);
}

// Supervises the processes and shows progress until the run ends or fails.
void FollowRun(LocalCluster& cluster, const CoordinatorClient& client, const std::string& run,
               const ClusterRunOptions& options, Progress& progress, ClusterRunEnd& end) {
  Follower follower(client, run);
  while (true) {
    end.interrupt = TakeInterrupt(kPollInterval);
    if (end.interrupt) return;
    const std::optional<absl::Status> outcome = follower.Outcome();
    if (const auto update = follower.Take()) {
      end.summary.run = update->run();
      if (!KeepGroups(update->groups(), end.summary)) {
        const auto details = client.Status(run);
        if (details.ok()) KeepGroups(details->groups(), end.summary);
      }
      if (options.on_update) options.on_update(update->run());
      progress.Update(update->run(), absl::Now());
    }
    if (outcome.has_value()) {
      end.status = *outcome;
      return;
    }
    end.status = cluster.Supervise();
    if (!end.status.ok()) return;
    if (absl::Now() >= options.deadline) {
      end.status = absl::DeadlineExceededError("the run has not ended within the timeout");
      return;
    }
  }
}

// Submits the run and follows it to its end.
void Train(LocalCluster& cluster, const v1::RunSpec& spec, const ClusterRunOptions& options,
           Progress& progress, ClusterRunEnd& end) {
  const CoordinatorClient client({.coordinator = cluster.coordinator(),
                                  .credentials = cluster.credentials(),
                                  .dial_timeout = kDialTimeout});
  const absl::StatusOr<std::string> run = client.Submit(spec);
  if (!run.ok()) {
    end.status = run.status();
    return;
  }
  FollowRun(cluster, client, *run, options, progress, end);
  progress.Finish();
  if (end.interrupt) progress.Note("stopping all processes (Ctrl-C again kills them)");
}

void Append(const std::vector<std::string>& more, std::vector<std::string>& names) {
  names.insert(names.end(), more.begin(), more.end());
}

// The value of an optional flag as a list.
std::vector<std::string> ListOf(const std::optional<std::string>& value) {
  return value ? std::vector<std::string>{*value} : std::vector<std::string>();
}

// Whether the limits of this process, which all others inherit, permit a cluster of this size.
absl::Status CheckLimits(const v1::Cluster& cluster) {
  const int members = cluster.groups() * cluster.ranks_per_group() + cluster.aggregators();
  // Each process begins with a few open files. The coordinator has the most connections.
  CADRE_RETURN_IF_ERROR(CheckDescriptors(10 + kMemberDescriptors + 2 * members));
  // The workers together compute with about one thread per core.
  return ReserveThreads(kMemberThreads * (members + 1 /* coordinator */) + UsableCores());
}

}  // namespace

ClusterRunEnd RunOnCluster(const v1::RunSpec& spec, ClusterRunOptions options, Progress& progress) {
  ClusterRunEnd end;
  end.summary.ranks = spec.cluster().ranks_per_group();
  end.summary.aggregators = spec.cluster().aggregators();
  end.summary.one_machine = true;
  end.status = CheckLimits(spec.cluster());
  if (!end.status.ok()) return end;
  absl::StatusOr<WorkFolder> folder = WorkFolder::Make(options.cluster.folder);
  if (!folder.ok()) {
    end.status = folder.status();
    return end;
  }
  const auto checkpoint_roots = CheckpointRoots(spec.checkpoint());
  if (!checkpoint_roots.ok()) {
    end.status = checkpoint_roots.status();
    return end;
  }
  Append(*checkpoint_roots, options.cluster.checkpoint_roots);
  Append(DataRoots(spec.data()), options.cluster.data_roots);
  options.cluster.folder = folder->path();
  options.cluster.workers = spec.cluster().groups() * spec.cluster().ranks_per_group();
  options.cluster.numa_nodes = UsableNumaNodes();
  options.cluster.aggregators = spec.cluster().aggregators();
  options.cluster.note = [&progress](absl::string_view line) { progress.Note(line); };
  options.cluster.hurry = [] { return TakeInterrupt(absl::ZeroDuration()).has_value(); };
  auto cluster = LocalCluster::Start(options.cluster);
  if (!cluster.ok()) {
    folder->Keep();  // the message may name a log in it
    end.status = cluster.status();
    return end;
  }
  end.started = true;
  NoteStart(spec, **cluster, options, progress);
  Train(**cluster, spec, options, progress, end);
  (*cluster)->Shutdown();
  const bool failed = !end.done() || end.summary.run.checkpoint().failures() > 0;
  if (failed && !end.interrupt) {
    folder->Keep();
    end.logs = (*cluster)->logs();
  }
  return end;
}

int ReportFailure(const ClusterRunEnd& end, const Console& console) {
  if (end.interrupt) return 128 + *end.interrupt;
  int code = end.done() ? kExitOk : kExitFailure;
  // Errors before the start of the processes are plain failures: exit codes for a coordinator's
  // errors (such as unavailable) would mislead.
  if (!end.status.ok()) {
    const int failed = Fail(console, end.status);
    if (end.started) code = failed;
  }
  if (!end.logs.empty()) console.err << "cadre: logs are in " << end.logs << std::endl;
  return code;
}

// The run file is validated before any process starts, so that its errors are reported within
// milliseconds.
absl::StatusOr<int> RunLocal(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const SpecFlags flags, SpecFlagsOf(in.line));
  CADRE_ASSIGN_OR_RETURN(const std::string programs, ProgramsFolder());
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(in.line.argument(), flags);
  if (!loaded.ok()) return FailSpec(in.console, loaded.status());
  const bool cuda = loaded->spec.cluster().device() == v1::Cluster::CUDA;
  // Until here an interrupt ends the program; from here on there are processes to stop.
  BlockInterrupts();
  Progress progress(in.console.err, ProgressOnErr(in.global, in.console));
  const ClusterRunEnd end = RunOnCluster(
      loaded->spec,
      {.cluster = {.programs = programs,
                   .folder = in.line.Get<std::string>("dir").value_or(""),
                   .threads = in.line.Value<uint32_t>("threads"),
                   .device = in.line.Get<std::string>("device").value_or(cuda ? "cuda" : "cpu"),
                   .data_roots = ListOf(in.line.Get<std::string>("data-root")),
                   .checkpoint_roots = ListOf(in.line.Get<std::string>("checkpoint-root")),
                   .insecure = in.global.insecure,
                   .lease = absl::Milliseconds(in.line.Value<uint32_t>("lease-ms")),
                   .restart = in.line.Value<bool>("restart")},
       .deadline = DeadlineOf(in.global, absl::Now()),
       .line_before_run = loaded->begins},
      progress);
  // The summary is printed for failed runs as well.
  if (end.status.ok() && !end.interrupt) {
    Print(ToJson(end.summary), ToText(end.summary), in.global, in.console, JsonLayout::kOneLine);
  }
  return ReportFailure(end, in.console);
}

}  // namespace cadre
