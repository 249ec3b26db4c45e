#include "cli/local.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "cli/local_cluster.h"
#include "cli/progress.h"
#include "cli/summary.h"

namespace cadre {
namespace {

// How often processes are looked after and progress is drawn.
constexpr absl::Duration kBeat = absl::Milliseconds(100);
// A coordinator on this machine that does not answer within this is being restarted.
constexpr absl::Duration kDial = absl::Seconds(1);

// Store, data and logs; a temporary one is removed when it is not kept.
class WorkFolder {
 public:
  static absl::StatusOr<WorkFolder> Make(const std::string& dir) {
    if (!dir.empty()) {
      CADRE_RETURN_IF_ERROR(MakeFolder(dir));
      if (std::filesystem::exists(dir + "/store.db")) {
        return absl::AlreadyExistsError(absl::StrCat(
            dir, " holds the store of an earlier cluster; choose another --dir or remove it"));
      }
      return WorkFolder(dir, true);
    }
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) return absl::NotFoundError(absl::StrCat("no temporary folder: ", error.message()));
    std::string path = (parent / "cadre-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "cannot make", path);
    return WorkFolder(path, false);
  }
  WorkFolder(WorkFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")), keep_(other.keep_) {}
  ~WorkFolder() {
    std::error_code ignored;
    if (!keep_ && !path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  void Keep() { keep_ = true; }

 private:
  WorkFolder(std::string path, bool keep) : path_(std::move(path)), keep_(keep) {}

  std::string path_;
  bool keep_;
};

// How following ended, besides what the run itself came to.
struct Followed {
  absl::Status status;
  // The signal that ended it.
  std::optional<int> interrupt;
};

// Looks after the processes and shows progress until the run ends or cannot go on.
Followed FollowRun(LocalCluster& cluster, const CoordinatorClient& client, const std::string& run,
                   absl::Time deadline, Progress& progress, Summary& summary) {
  Follower follower(client, run);
  while (true) {
    if (const auto number = TakeInterrupt(kBeat)) return {absl::OkStatus(), number};
    const std::optional<absl::Status> outcome = follower.Outcome();
    if (const auto update = follower.Take()) {
      summary.run = update->run();
      KeepGroups(update->groups(), summary);
      progress.Update(update->run(), absl::Now());
    }
    if (outcome.has_value()) return {*outcome, std::nullopt};
    if (absl::Status status = cluster.Supervise(); !status.ok()) return {status, std::nullopt};
    if (absl::Now() >= deadline) {
      return {absl::DeadlineExceededError("the run has not ended in the time given"), std::nullopt};
    }
  }
}

LocalClusterOptions ClusterOptions(const LocalOptions& options, const v1::RunSpec& spec,
                                   const WorkFolder& folder, Progress& progress) {
  const v1::Cluster& wanted = spec.cluster();
  return {.programs = options.programs,
          .folder = folder.path(),
          .workers = wanted.groups() * wanted.ranks_per_group(),
          .aggregators = wanted.aggregators(),
          .threads = options.threads,
          .lease = options.lease,
          .restart = options.restart,
          .note = [&progress](absl::string_view line) { progress.Note(line); },
          .hurry = [] { return TakeInterrupt(absl::ZeroDuration()).has_value(); }};
}

// What the run came to, as exit code and text.
int Conclude(const GlobalOptions& global, const Followed& followed, const Summary& summary,
             const Console& console) {
  if (followed.interrupt) return 128 + *followed.interrupt;
  if (!followed.status.ok()) return Fail(console, followed.status);
  if (global.format == OutputFormat::kJson) {
    console.out << SummaryJson(summary) << std::endl;
  } else {
    console.out << SummaryText(summary) << std::flush;
  }
  return summary.run.state() == v1::DONE ? kExitOk : kExitFailure;
}

}  // namespace

int RunLocal(const GlobalOptions& global, const LocalOptions& options, const Console& console) {
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(options.spec, options.flags);
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  const v1::RunSpec* const spec = &loaded->spec;
  // From here on there is something to clean up; until here an interrupt just ends the program.
  BlockInterrupts();
  absl::StatusOr<WorkFolder> folder = WorkFolder::Make(options.dir);
  if (!folder.ok()) return Fail(console, folder.status());

  Progress progress(console.err, ProgressOnErr(global, console));
  const absl::Time deadline = DeadlineOf(global, absl::Now());
  auto cluster = LocalCluster::Start(ClusterOptions(options, *spec, *folder, progress));
  if (!cluster.ok()) {
    // Its codes are about this machine, not about a coordinator that somebody asked for.
    Fail(console, cluster.status());
    folder->Keep();  // the reason may name a log in it
    return kExitFailure;
  }
  progress.Note(absl::StrCat("started ", spec->cluster().groups(), " groups of ",
                             spec->cluster().ranks_per_group(), " workers and ",
                             spec->cluster().aggregators(), " aggregators; coordinator at ",
                             (*cluster)->coordinator(), ", logs in ", (*cluster)->logs()));

  if (!loaded->begins.empty()) progress.Note(loaded->begins);

  const CoordinatorClient client({.coordinator = (*cluster)->coordinator(), .dial_timeout = kDial});
  const absl::StatusOr<std::string> run = client.Submit(*spec);
  if (!run.ok()) {
    folder->Keep();
    console.err << "cadre: logs are in " << (*cluster)->logs() << std::endl;
    return Fail(console, run.status());
  }
  Summary summary;
  summary.ranks = spec->cluster().ranks_per_group();
  summary.aggregators = spec->cluster().aggregators();
  const Followed followed = FollowRun(**cluster, client, *run, deadline, progress, summary);
  progress.Finish();
  if (followed.interrupt) progress.Note("ending all processes (again Ctrl-C: at once)");
  (*cluster)->Shutdown();

  const int code = Conclude(global, followed, summary, console);
  if (code != kExitOk && !followed.interrupt) {
    folder->Keep();
    console.err << "cadre: logs are in " << (*cluster)->logs() << std::endl;
  }
  return code;
}

}  // namespace cadre
