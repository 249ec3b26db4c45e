// Commands that call a coordinator. Each makes one call and prints the reply, except watch, wait
// and run, which follow updates.

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/atomic_file.h"
#include "base/peer_text.h"
#include "base/protocol.h"
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
#include "proto/enum_text.h"

namespace cadre {
namespace {

constexpr absl::Duration kVersionTimeout = absl::Seconds(2);
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

// Prints the items of a reply, whose JSON has them under `key`: each on a line of its own with -o
// jsonl, only their names with -o name.
template <typename Items, typename NameOf>
void PrintList(const Invocation& in, const Json& json, const char* key, const std::string& text,
               const Items& items, NameOf name_of) {
  if (in.global.format == OutputFormat::kName) {
    for (const auto& item : items) in.console.out << name_of(item) << "\n";
  } else if (in.global.format == OutputFormat::kJsonLines) {
    for (const Json& item : json[key]) in.console.out << OneLine(item) << "\n";
  } else {
    Print(json, text, in.global, in.console);
  }
  in.console.out << std::flush;
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
  const bool ended = status.state() == v1::RUN_STATE_DONE ||
                     status.state() == v1::RUN_STATE_FAILED ||
                     status.state() == v1::RUN_STATE_STOPPED;
  if (!holds && ended) {
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

}  // namespace

absl::StatusOr<int> ListRuns(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_ASSIGN_OR_RETURN(const v1::ListReply reply, client->List());
  // Nothing on stdout could be taken for a failure, so stderr says that there is nothing to list.
  if (reply.runs().empty() && !in.global.quiet) in.console.err << "no runs yet" << std::endl;
  PrintList(in, ToJson(reply), "runs",
            RunsTable(reply.runs(), in.global.format == OutputFormat::kWide), reply.runs(),
            [](const v1::RunStatus& run) { return run.run(); });
  return kExitOk;
}

absl::StatusOr<int> ShowStatus(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, client->Status(in.line.argument()));
  Print(ToJson(reply), OverviewText(reply, in.global.coordinator), in.global, in.console);
  return kExitOk;
}

// A coordinator that cannot be reached is not an error: the version of this program was printed.
absl::StatusOr<int> ShowVersion(const Invocation& in) {
  const auto text = [](absl::string_view program, absl::string_view version, uint32_t protocol) {
    return absl::StrCat(program, " ", version, " (protocol ", protocol, ")");
  };
  const auto json = [](absl::string_view version, uint32_t protocol) {
    return Json{{"version", version}, {"protocol", protocol}};
  };
  Json all{{"client", json(CADRE_VERSION, kProtocol)}};
  std::string lines = text("cadre", CADRE_VERSION, kProtocol) + "\n";
  if (!in.line.On("client")) {
    GlobalOptions options = in.global;
    options.timeout = std::min(options.timeout.value_or(kVersionTimeout), kVersionTimeout);
    const auto ask = [&]() -> absl::StatusOr<v1::StatusReply> {
      CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(options));
      return client->Status("", /*details=*/false);
    };
    const absl::StatusOr<v1::StatusReply> reply = ask();
    all["coordinator"] = nullptr;
    if (reply.ok()) {
      const v1::CoordinatorStatus& coordinator = reply->coordinator();
      all["coordinator"] = json(coordinator.version(), coordinator.protocol());
      absl::StrAppend(&lines, text("coordinator", coordinator.version(), coordinator.protocol()),
                      " at ", options.coordinator, "\n");
    } else if (!options.quiet) {
      in.console.err << Escaped(reply.status().message()) << std::endl;
    }
  }
  Print(all, lines, in.global, in.console);
  return kExitOk;
}

absl::StatusOr<int> DescribeRun(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, client->Status(in.line.argument()));
  Print(ToJson(reply), RunDetailsText(reply), in.global, in.console);
  return kExitOk;
}

absl::StatusOr<int> ShowMembers(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, client->Status("", /*details=*/false));
  const bool none = reply.workers().empty() && reply.aggregators().empty();
  if (none && !in.global.quiet) in.console.err << "no members yet" << std::endl;
  if (in.global.format == OutputFormat::kName) {
    for (const v1::MemberStatus& worker : reply.workers()) in.console.out << worker.name() << "\n";
    for (const v1::AggregatorStatus& aggregator : reply.aggregators()) {
      in.console.out << aggregator.member().name() << "\n";
    }
    return kExitOk;
  }
  Print(MembersJson(reply), MembersText(reply, in.global.format == OutputFormat::kWide), in.global,
        in.console);
  return kExitOk;
}

// All pages.
absl::StatusOr<int> ShowEvents(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  const bool follow = in.line.On("follow");
  uint64_t after = in.line.Value<uint64_t>("after");
  const absl::Time deadline = DeadlineOf(in.global, absl::Now());
  v1::EventsReply all;
  while (true) {
    const absl::StatusOr<v1::EventsReply> page = client->Events(in.line.argument(), after);
    if (!follow || !absl::IsUnavailable(page.status())) CADRE_RETURN_IF_ERROR(page.status());
    const bool none = !page.ok() || page->events().empty();
    if (!none) {
      all.MergeFrom(*page);
      after = page->events().rbegin()->number();
    }
    if (!none && !follow) continue;
    if (!follow) break;
    const bool json = IsJson(in.global.format);
    for (const v1::ClusterEvent& event : all.events()) {
      in.console.out << (json ? OneLine(ToJson(event)) + "\n" : EventLine(event));
    }
    all.clear_events();
    // Following stops when the reader has closed the pipe.
    if (!(in.console.out << std::flush) || absl::Now() > deadline) return kExitOk;
    if (none) absl::SleepFor(absl::Milliseconds(500));
  }
  if (all.events().empty() && !in.global.quiet) in.console.err << "no events" << std::endl;
  std::string text;
  for (const v1::ClusterEvent& event : all.events()) text += EventLine(event);
  Json json = ToJson(all);
  PrintList(in, json, "events", text, all.events(),
            [](const v1::ClusterEvent& event) { return event.number(); });
  return kExitOk;
}

absl::StatusOr<int> ShowHistory(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  v1::HistoryReply all;
  uint64_t after = in.line.Value<uint64_t>("after");
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const v1::HistoryReply page, client->History(in.line.argument(), after));
    all.MergeFrom(page);
    if (page.entries().empty() || page.entries().rbegin()->number() >= page.newest()) break;
    after = page.entries().rbegin()->number();
  }
  PrintList(in, ToJson(all), "entries", HistoryTable(all), all.entries(),
            [](const v1::HistoryEntry& entry) { return entry.number(); });
  return kExitOk;
}

// Exit code 1 if something needs an operator; 4 if the coordinator does not answer.
absl::StatusOr<int> CheckHealth(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, client->Status("", /*details=*/false));
  const std::vector<std::string> problems = ProblemsOf(reply);
  std::string text = problems.empty() ? "healthy\n" : "";
  for (const std::string& problem : problems) absl::StrAppend(&text, Escaped(problem), "\n");
  Print(Json{{"healthy", problems.empty()}, {"problems", problems}}, text, in.global, in.console);
  return problems.empty() ? kExitOk : kExitFailure;
}

// On a terminal the line of a run is redrawn; elsewhere, and in JSON, each change is one line.
absl::StatusOr<int> WatchRuns(const Invocation& in) {
  const GlobalOptions& options = in.global;
  const Console& console = in.console;
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(options));
  Progress progress(console.out, {.terminal = console.out_terminal,
                                  .color = console.color && console.out_terminal,
                                  .width = console.width});
  PredictionNotes notes;
  FollowOptions follow;
  follow.run = in.line.argument();
  follow.deadline = DeadlineOf(options, absl::Now());
  // A coordinator that was never reached is an error that Follow returns, not a reason to wait.
  bool connected = false;
  follow.on_update = [&](const v1::WatchUpdate& update) {
    connected = true;
    if (IsJson(options.format)) {
      console.out << OneLine(ToJson(update)) << std::endl;
    } else {
      progress.Update(update.run(), absl::Now());
      for (const std::string& line : notes.New(update)) progress.Note(line);
    }
    // Following stops when the reader has closed the pipe.
    return console.out.good();
  };
  follow.on_away = [&](const absl::Status& status) {
    if (connected && !options.quiet) {
      console.err << "cadre: " << Escaped(status.message()) << "; retrying" << std::endl;
    }
  };
  const absl::Status status = Follow(*client, follow);
  progress.Finish();
  CADRE_RETURN_IF_ERROR(status);
  return kExitOk;
}

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

// The reason appears in the status of the run.
absl::StatusOr<int> StopRun(const Invocation& in) {
  const std::string run = in.line.argument();
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_RETURN_IF_ERROR(client->Stop(run, "stopped by cadre stop"));
  if (!in.global.quiet) in.console.err << "run " << run << " is stopped" << std::endl;
  return kExitOk;
}

absl::StatusOr<int> DeleteRun(const Invocation& in) {
  const std::string run = in.line.argument();
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_RETURN_IF_ERROR(client->Delete(run));
  if (!in.global.quiet) in.console.err << "run " << run << " is deleted" << std::endl;
  return kExitOk;
}

absl::StatusOr<int> ScaleRun(const Invocation& in) {
  const std::string run = in.line.argument();
  const uint32_t groups = in.line.Value<uint32_t>("groups");
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_RETURN_IF_ERROR(client->Scale(run, groups));
  if (!in.global.quiet) {
    in.console.err << "run " << run << " will have " << groups << " groups from its next version on"
                   << std::endl;
  }
  return kExitOk;
}

absl::StatusOr<int> ResumeRun(const Invocation& in) {
  const std::string run = in.line.argument();
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(in.global));
  CADRE_RETURN_IF_ERROR(client->Resume(run));
  if (!in.global.quiet) in.console.err << "run " << run << " continues" << std::endl;
  return kExitOk;
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
  CADRE_ASSIGN_OR_RETURN(const v1::AdoptReply reply, client->Adopt(in.line.argument()));
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
  CADRE_ASSIGN_OR_RETURN(const v1::CordonReply reply, client->Cordon(in.line.argument(), mode));
  Print(ToJson(reply), absl::StrJoin(reply.members(), "\n") + "\n", in.global, in.console);
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
    if (absl::Now() >= report_at && !HasEnded(ended.state())) progress.Update(ended, absl::Now());
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

}  // namespace cadre
