// Verbs that change something at a coordinator, and those that follow a run to its end.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/atomic_file.h"
#include "base/peer_text.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/progress.h"
#include "cli/query_tables.h"
#include "cli/render.h"
#include "cli/spec_file.h"
#include "cli/summary.h"
#include "model/validate.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using enum ValueKind;

// A command that only waits says what it waits for after this time, and then at this interval.
constexpr absl::Duration kQuietWait = absl::Seconds(10);
constexpr absl::Duration kWaitReports = absl::Minutes(1);

// Scripts must notice runs that failed or were stopped, although the call succeeded.
int ExitCodeOfRun(const v1::RunStatus& run) { return HasSucceeded(run) ? kExitOk : kExitFailure; }

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
    if (!KeepGroups(update.groups(), summary)) {
      const auto details = client.Status(run);
      if (details.ok()) KeepGroups(details->groups(), summary);
    }
    progress.Update(update.run(), absl::Now());
    return true;
  };
  follow.on_away = [&](const absl::Status& status) {
    progress.Note(absl::StrCat(Escaped(status.message()), "; retrying"));
  };
  const absl::Status status = Follow(client, follow);
  progress.Finish();
  CADRE_RETURN_IF_ERROR(status);
  Print(ToJson(summary), ToText(summary), options, console, JsonLayout::kOneLine);
  return ExitCodeOfRun(summary.run);
}

// "state=done", "members=4" or "version=10".
struct Condition {
  std::string key;
  std::string value;
  uint64_t number = 0;
};

absl::StatusOr<Condition> ParseCondition(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  Condition condition{.key = parts[0], .value = parts.size() == 2 ? parts[1] : ""};
  const bool counts = condition.key == "members" || condition.key == "version";
  const bool valid =
      counts ? absl::SimpleAtoi(condition.value, &condition.number)
             : condition.key == "state" && EnumFromText<v1::RunState>(condition.value).has_value();
  if (valid) return condition;
  return UsageError(absl::StrCat(
      "--for takes state=STATE, members=N or version=N, such as state=done, not '", text, "'"));
}

// Whether the condition holds; an error if it cannot become true any more. A name becomes the id of
// its run, because it may stand for a newer one later.
absl::StatusOr<bool> Holds(const CoordinatorClient& client, const Condition& condition,
                           std::string& run) {
  if (condition.key == "members") {
    CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, client.Status("", /*details=*/false));
    const auto connected = [](const v1::MemberStatus& worker) { return worker.connected(); };
    return std::cmp_greater_equal(
        std::count_if(reply.workers().begin(), reply.workers().end(), connected), condition.number);
  }
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, client.Status(run, /*details=*/false));
  if (reply.runs().empty()) return absl::NotFoundError(absl::StrCat("no such run: ", run));
  const v1::RunStatus& status = reply.runs(0);
  run = status.run();
  const bool holds = condition.key == "version" ? status.version() >= condition.number
                                                : EnumText(status.state()) == condition.value;
  if (!holds && HasEnded(status)) {
    return absl::FailedPreconditionError(absl::StrCat("run ", run, " is ", EnumText(status.state()),
                                                      " at version ", status.version()));
  }
  return holds;
}

// Asks repeatedly, because members do not belong to a run that could be watched.
absl::StatusOr<int> WaitForCondition(const Invocation& in, const CoordinatorClient& client) {
  constexpr absl::Duration kInterval = absl::Milliseconds(250);
  CADRE_ASSIGN_OR_RETURN(const Condition condition,
                         ParseCondition(*in.line.Get<std::string>("for")));
  std::string run = in.line.argument();
  if (run.empty() != (condition.key == "members")) {
    return UsageError(condition.key == "members" ? "--for members=N concerns all runs, not one"
                                                 : "missing argument RUN");
  }
  const absl::Time deadline = DeadlineOf(in.global, absl::Now());
  absl::Time report_at = absl::Now() + kQuietWait;
  while (true) {
    const absl::StatusOr<bool> holds = Holds(client, condition, run);
    const bool away = absl::IsUnavailable(holds.status());
    if (!away) CADRE_RETURN_IF_ERROR(holds.status());
    if (!away && *holds) return kExitOk;
    if (absl::Now() >= report_at && !in.global.quiet) {
      in.console.err << "waiting for " << condition.key << "=" << condition.value
                     << (away ? absl::StrCat(": ", Escaped(holds.status().message())) : "")
                     << std::endl;
      report_at += kWaitReports;
    }
    if (absl::Now() + kInterval > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(condition.key, "=", condition.value, " did not hold in time"));
    }
    absl::SleepFor(kInterval);
  }
}

// Gives the order, and says what its effect is.
template <typename Request, typename Method>
absl::StatusOr<int> Order(const Invocation& in, Method method, Request request,
                          absl::string_view effect) {
  request.set_run(in.line.argument());
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_RETURN_IF_ERROR(client->Call(method, request).status());
  if (!in.global.quiet) in.console.err << "run " << request.run() << effect << std::endl;
  return kExitOk;
}

absl::StatusOr<int> StopRun(const Invocation& in) {
  v1::StopRequest request;
  // It appears in the status of the run.
  request.set_reason("stopped by cadre stop");
  return Order(in, &v1::Runs::Stub::Stop, request, " is stopped");
}

absl::StatusOr<int> DeleteRun(const Invocation& in) {
  return Order(in, &v1::Runs::Stub::Delete, v1::DeleteRequest(), " is deleted");
}

absl::StatusOr<int> ScaleRun(const Invocation& in) {
  v1::ScaleRequest request;
  request.set_groups(in.line.Value<uint32_t>("groups"));
  return Order(in, &v1::Runs::Stub::Scale, request,
               absl::StrCat(" will have ", request.groups(), " groups from its next version on"));
}

absl::StatusOr<int> ResumeRun(const Invocation& in) {
  return Order(in, &v1::Runs::Stub::Resume, v1::ResumeRequest(), " continues");
}

absl::StatusOr<int> RollBackRun(const Invocation& in) {
  v1::RollbackRequest request;
  request.set_version(in.line.Value<uint32_t>("to"));
  std::string text = absl::StrCat(" continues from version ", request.version());
  if (const auto groups = in.line.Get<std::string>("leave-out")) {
    for (const absl::string_view word : absl::StrSplit(*groups, ',')) {
      uint32_t group = 0;
      if (!absl::SimpleAtoi(word, &group)) {
        return UsageError(
            absl::StrCat("--leave-out takes numbers of groups, such as 0,2, not '", *groups, "'"));
      }
      request.add_leave_out(group);
    }
    absl::StrAppend(&text, " without groups ", *groups);
  }
  return Order(in, &v1::Runs::Stub::Rollback, request, text);
}

Verb RollbackVerb() {
  return {.name = "rollback",
          .arguments = {{.name = "RUN"}},
          .flags = {Flag{"to", kCount, "VERSION", "a version that is kept, as 'cadre status' shows"}
                        .Required(),
                    {"leave-out", kText, "GROUPS",
                     "groups that do not take part any more, such as 0,2"}},
          .brief = "continue a run from an older version",
          .run = RollBackRun};
}

// The file appears when it is complete, and only its owner can read it: it has the keys of the
// runs.
absl::StatusOr<int> BackUpStore(const Invocation& in) {
  constexpr absl::Duration kLimit = absl::Minutes(10);
  const std::string path = in.line.argument();
  const Console& console = in.console;
  const bool progress = console.err_terminal && !in.global.quiet;
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  uint64_t bytes = 0;
  const absl::Status received = client->Backup(
      absl::Now() + in.global.timeout.value_or(kLimit), [&](const v1::BackupChunk& chunk) {
        bytes += chunk.data().size();
        if (progress) {
          console.err << "\r" << bytes << " of " << chunk.file_bytes() << " bytes" << std::flush;
        }
        return file.Append(chunk.data());
      });
  if (progress && bytes > 0) console.err << std::endl;
  CADRE_RETURN_IF_ERROR(received);
  CADRE_RETURN_IF_ERROR(file.Commit());
  if (!in.global.quiet) {
    console.err << path << ": a backup of " << bytes << " bytes" << std::endl;
  }
  return kExitOk;
}

// Scripts must notice runs that could not be adopted.
absl::StatusOr<int> AdoptRuns(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  v1::AdoptRequest request;
  request.set_run(in.line.argument());
  CADRE_ASSIGN_OR_RETURN(const v1::AdoptReply reply, client->Call(&v1::Runs::Stub::Adopt, request));
  if (reply.runs().empty() && !in.global.quiet) {
    in.console.err << "the aggregators store no unknown runs" << std::endl;
  }
  Print(ToJson(reply), AdoptedTable(reply), in.global, in.console);
  const bool all = std::all_of(reply.runs().begin(), reply.runs().end(),
                               [](const v1::AdoptedRun& run) { return run.problem().empty(); });
  return all ? kExitOk : kExitFailure;
}

absl::StatusOr<int> CordonMembers(const Invocation& in) {
  using Mode = CoordinatorClient::CordonMode;
  const Mode mode = in.line.verb()->name == "drain" ? Mode::kDrain
                    : in.line.On("undo")            ? Mode::kUndo
                                                    : Mode::kCordon;
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  absl::Duration within;
  if (mode == Mode::kDrain) {
    within = in.line.Get<absl::Duration>("within").value_or(absl::ZeroDuration());
  }
  CADRE_ASSIGN_OR_RETURN(const v1::CordonReply reply,
                         client->Cordon(in.line.argument(), mode, within));
  Print(ToJson(reply), absl::StrJoin(reply.members(), "\n") + "\n", in.global, in.console);
  if (!reply.sole_models().empty()) {
    in.console.err << "cadre: the models of these runs, which have ended, can be read only while "
                   << in.line.argument() << " runs: " << absl::StrJoin(reply.sole_models(), ", ")
                   << "; to keep them without it: cadre export RUN" << std::endl;
  }
  return kExitOk;
}

// Follows the run instead of one long call, so that a restart of the coordinator does not end it.
absl::StatusOr<int> WaitForRun(const Invocation& in) {
  const GlobalOptions& options = in.global;
  // --timeout limits the wait, not each call.
  GlobalOptions calls = options;
  calls.timeout.reset();
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(calls));
  if (in.line.Get<std::string>("for").has_value()) return WaitForCondition(in, *client);
  if (in.line.argument().empty()) return UsageError("missing argument RUN");
  v1::RunStatus ended;
  FollowOptions follow;
  follow.run = in.line.argument();
  follow.deadline = DeadlineOf(options, absl::Now());
  Progress progress(in.console.err, {.quiet = options.quiet, .plain_interval = kWaitReports});
  const absl::Time report_at = absl::Now() + kQuietWait;
  follow.on_update = [&](const v1::WatchUpdate& update) {
    ended = update.run();
    if (absl::Now() >= report_at && !HasEnded(ended)) progress.Update(ended, absl::Now());
    return true;
  };
  follow.on_away = [&](const absl::Status& status) {
    if (!options.quiet) {
      in.console.err << "cadre: " << Escaped(status.message()) << "; retrying" << std::endl;
    }
  };
  CADRE_RETURN_IF_ERROR(Follow(*client, follow));
  if (IsJson(options.format)) {
    // Without JSON stdout stays empty, so that scripts can use the exit code alone.
    in.console.out << Indented(ToJson(ended)) << std::endl;
  } else if (!options.quiet || !HasSucceeded(ended)) {
    in.console.err << ended.run() << "  " << ProgressText(ended) << std::endl;
  }
  return ExitCodeOfRun(ended);
}

}  // namespace

absl::StatusOr<int> SubmitRun(const Invocation& in) {
  const GlobalOptions& options = in.global;
  const Console& console = in.console;
  CADRE_ASSIGN_OR_RETURN(SpecFlags flags, SpecFlagsOf(in.line));
  // The data files are on the machines of the workers.
  flags.here = false;
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(in.line.argument(), flags);
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  if (!options.quiet && !loaded->begins.empty()) console.err << loaded->begins << std::endl;
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(options));
  const absl::StatusOr<std::string> run = client->Submit(loaded->spec);
  if (!run.ok()) return Fail(console, run.status());
  if (in.line.On("detach")) {
    Print({{"run", *run}}, *run + "\n", options, console, JsonLayout::kOneLine);
    return kExitOk;
  }
  if (!options.quiet) {
    console.err << "run " << *run << " is submitted; Ctrl-C does not stop it ('cadre stop " << *run
                << "' ends it)" << std::endl;
  }
  Summary summary;
  summary.ranks = loaded->spec.cluster().ranks_per_group();
  summary.aggregators = loaded->spec.cluster().aggregators();
  return FollowToEnd(in, *client, std::move(summary), *run);
}

std::vector<Verb> OrderVerbs() {
  return {
      {.name = "cordon",
       .arguments = {{.name = "NAME|HOST|ID"}},
       .flags = {{"undo", kSwitch, "", "readmit the workers and erase their failures on record"}},
       .brief = "exclude a worker, all workers of a host, or an aggregator from new work",
       .run = CordonMembers},
      {.name = "drain",
       .arguments = {{.name = "NAME|HOST|ID"}},
       .flags = {{"within", kDuration, "T",
                  "time after which the workers end in any case; default: their own limits"}},
       .brief =
           "let a worker or a host contribute and end, or move an aggregator's shards to others",
       .run = CordonMembers},
      {.name = "scale",
       .arguments = {{.name = "RUN"}},
       .flags = {Flag{"groups", kCount, "N", "number of groups"}.Required().Min(1).Max(kMaxGroups)},
       .brief = "change the number of groups of a run",
       .run = ScaleRun},
      {.name = "stop",
       .arguments = {{.name = "RUN"}},
       .brief = "stop a run immediately; its last version remains",
       .run = StopRun},
      {.name = "delete",
       .arguments = {{.name = "RUN"}},
       .brief = "delete a run that has ended, with its model",
       .run = DeleteRun},
      {.name = "resume",
       .arguments = {{.name = "RUN"}},
       .brief = "continue a parked run",
       .run = ResumeRun},
      RollbackVerb(),
      {.name = "adopt",
       .arguments = {{.name = "RUN", .optional = true}},
       .brief = "continue runs of a coordinator that has lost its store",
       .run = AdoptRuns},
      {.name = "backup",
       .arguments = {{.name = "FILE", .kind = kFile}},
       .brief = "copy the coordinator's store to a file, while runs continue",
       .run = BackUpStore},
      {.name = "wait",
       .arguments = {{.name = "RUN", .optional = true}},
       .flags = {{"for", kText, "WHAT",
                  "state=STATE, version=N (of the run), or members=N (connected workers, without a "
                  "run)"}},
       .brief = "wait until a run ends, or for another condition",
       .run = WaitForRun},
      {.name = "trace",
       .arguments = {{.name = "RUN"}},
       .flags =
           {Flag{"group", kCount, "G", "the group"}.Fallback("0"),
            Flag{"steps", kCount, "N", "steps to record, 1 to 100"}.Fallback("3").Min(1).Max(100),
            Flag{"output", kFile, "FILE",
                 "where to write the trace (default trace-RUN.json); - is stdout, and the table "
                 "then goes to stderr"}
                .Letter('O')},
       .brief = "record steps of a group: which rank computed and which waited",
       .run = TraceRun}};
}

}  // namespace cadre
