// Commands that submit, stop and await runs.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
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

// Scripts must notice runs that failed or were stopped, although the call succeeded.
int ExitCodeOfRun(const v1::RunStatus& run) {
  return run.state() == v1::RUN_STATE_DONE ? kExitOk : kExitFailure;
}

// Follows a run to its end and prints its summary; progress goes to stderr.
absl::StatusOr<int> FollowToEnd(const Invocation& in, const CoordinatorClient& client,
                                Summary summary, const std::string& run) {
  const GlobalOptions& options = in.global;
  const Console& console = in.console;
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
  CADRE_RETURN_IF_ERROR(status);
  Print(summary, options, console, JsonLayout::kOneLine);
  return ExitCodeOfRun(summary.run);
}

}  // namespace

absl::StatusOr<int> SubmitRun(const Invocation& in) {
  const GlobalOptions& options = in.global;
  const Console& console = in.console;
  CADRE_ASSIGN_OR_RETURN(SpecFlags flags, SpecFlagsOf(in.line));
  flags.here = false;
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(in.line.argument(), flags);
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  const v1::RunSpec* const spec = &loaded->spec;
  if (!options.quiet && !loaded->begins.empty()) console.err << loaded->begins << std::endl;
  const CoordinatorClient client = MakeClient(options);
  const absl::StatusOr<std::string> run = client.Submit(*spec);
  if (!run.ok()) return Fail(console, run.status());
  if (in.line.On("detach")) {
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
  return FollowToEnd(in, client, std::move(summary), *run);
}

absl::StatusOr<int> StopRun(const Invocation& in) {
  const std::string run = in.line.argument();
  CADRE_RETURN_IF_ERROR(MakeClient(in.global).Stop(run, "stopped by cadre stop"));
  if (!in.global.quiet) in.console.err << "run " << run << " is stopped" << std::endl;
  return kExitOk;
}

absl::StatusOr<int> WaitForRun(const Invocation& in) {
  const GlobalOptions& options = in.global;
  // --timeout limits the wait, not each call.
  GlobalOptions calls = options;
  calls.timeout.reset();
  const CoordinatorClient client = MakeClient(calls);
  v1::RunStatus ended;
  FollowOptions follow;
  follow.run = in.line.argument();
  follow.deadline = DeadlineOf(options, absl::Now());
  follow.on_update = [&](const v1::WatchUpdate& update) {
    ended = update.run();
    return true;
  };
  CADRE_RETURN_IF_ERROR(Follow(client, follow));
  if (options.format == OutputFormat::kJson) {
    in.console.out << Indented(ToJson(ended)) << std::endl;
  } else if (!options.quiet || ended.state() != v1::RUN_STATE_DONE) {
    in.console.err << ended.run() << "  " << ProgressText(ended) << std::endl;
  }
  return ExitCodeOfRun(ended);
}

}  // namespace cadre
