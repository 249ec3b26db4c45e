#include "cli/control.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/follow.h"
#include "cli/progress.h"
#include "cli/render.h"
#include "cli/spec_file.h"
#include "cli/summary.h"

namespace cadre {
namespace {

struct Submitted {
  std::string run;
};

Json ToJson(const Submitted& submitted) { return {{"run", submitted.run}}; }
std::string ToText(const Submitted& submitted) { return submitted.run + "\n"; }

int ExitCodeOfRun(const v1::RunStatus& run) {
  return run.state() == v1::RUN_STATE_DONE ? kExitOk : kExitFailure;
}

// Follows a run to its end and prints its summary.
int FollowToEnd(const GlobalOptions& options, const CoordinatorClient& client, Summary summary,
                const std::string& run, const Console& console) {
  Progress progress(console.err, ProgressOnErr(options, console));
  FollowOptions follow;
  follow.run = run;
  follow.deadline = DeadlineOf(options, absl::Now());
  follow.on_update = [&](const v1::WatchUpdate& update) {
    summary.run = update.run();
    KeepGroups(update.groups(), summary);
    progress.Update(update.run(), absl::Now());
    return true;
  };
  follow.on_away = [&](const absl::Status& status) {
    progress.Note(absl::StrCat(status.message(), "; retrying"));
  };
  const absl::Status status = Follow(client, follow);
  progress.Finish();
  if (!status.ok()) return Fail(console, status);
  Print(summary, options, console, JsonLayout::kOneLine);
  return ExitCodeOfRun(summary.run);
}

}  // namespace

int SubmitRun(const GlobalOptions& options, const std::string& path, SpecFlags flags, bool detach,
              const Console& console) {
  flags.here = false;
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(path, flags);
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  const v1::RunSpec* const spec = &loaded->spec;
  if (!options.quiet && !loaded->begins.empty()) console.err << loaded->begins << std::endl;
  const CoordinatorClient client = MakeClient(options);
  const absl::StatusOr<std::string> run = client.Submit(*spec);
  if (!run.ok()) return Fail(console, run.status());
  if (detach) {
    Print(Submitted{*run}, options, console, JsonLayout::kOneLine);
    return kExitOk;
  }
  if (!options.quiet) {
    console.err << "run " << *run << " is submitted; Ctrl-C does not stop it ('cadre stop " << *run
                << "' ends it)" << std::endl;
  }
  Summary summary;
  summary.ranks = spec->cluster().ranks_per_group();
  summary.aggregators = spec->cluster().aggregators();
  return FollowToEnd(options, client, std::move(summary), *run, console);
}

int StopRun(const GlobalOptions& options, const std::string& run, const Console& console) {
  const absl::Status status = MakeClient(options).Stop(run, "stopped by cadre stop");
  if (!status.ok()) return Fail(console, status);
  if (!options.quiet) console.err << "run " << run << " is stopped" << std::endl;
  return kExitOk;
}

int WaitForRun(const GlobalOptions& options, const std::string& run, const Console& console) {
  // --timeout limits the wait, not each call.
  GlobalOptions calls = options;
  calls.timeout.reset();
  const CoordinatorClient client = MakeClient(calls);
  Summary summary;
  FollowOptions follow;
  follow.run = run;
  follow.deadline = DeadlineOf(options, absl::Now());
  follow.on_update = [&](const v1::WatchUpdate& update) {
    summary.run = update.run();
    return true;
  };
  const absl::Status status = Follow(client, follow);
  if (!status.ok()) return Fail(console, status);
  const v1::RunStatus& ended = summary.run;
  if (options.format == OutputFormat::kJson) {
    console.out << Indented(ToJson(ended)) << std::endl;
  } else if (!options.quiet || ended.state() != v1::RUN_STATE_DONE) {
    console.err << ended.run() << "  " << ProgressText(ended) << std::endl;
  }
  return ExitCodeOfRun(ended);
}

}  // namespace cadre
