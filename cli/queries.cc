// Verbs that read from a coordinator. Each makes one call and prints the reply, except watch, which
// follows updates.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/peer_text.h"
#include "base/protocol.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/group_text.h"
#include "cli/progress.h"
#include "cli/query_tables.h"
#include "cli/render.h"

namespace cadre {
namespace {

using enum ValueKind;

constexpr absl::Duration kVersionTimeout = absl::Seconds(2);

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
  v1::EventsRequest request;
  request.set_run(in.line.argument());
  request.set_after(in.line.Value<uint64_t>("after"));
  const absl::Time deadline = DeadlineOf(in.global, absl::Now());
  v1::EventsReply all;
  while (true) {
    const absl::StatusOr<v1::EventsReply> page = client->Call(&v1::Status::Stub::Events, request);
    if (!follow || !absl::IsUnavailable(page.status())) CADRE_RETURN_IF_ERROR(page.status());
    const bool none = !page.ok() || page->events().empty();
    if (!none) {
      all.MergeFrom(*page);
      request.set_after(page->events().rbegin()->number());
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
  v1::HistoryRequest request;
  request.set_run(in.line.argument());
  request.set_after(in.line.Value<uint64_t>("after"));
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const v1::HistoryReply page,
                           client->Call(&v1::Status::Stub::History, request));
    all.MergeFrom(page);
    if (page.entries().empty() || page.entries().rbegin()->number() >= page.newest()) break;
    request.set_after(page.entries().rbegin()->number());
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

}  // namespace

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

std::vector<Verb> QueryVerbs() {
  return {
      {.name = "runs", .brief = "list current and past runs", .run = ListRuns},
      {.name = "status",
       .arguments = {{.name = "RUN", .optional = true}},
       .brief = "show runs, groups, members and counters",
       .run = ShowStatus},
      {.name = "describe",
       .arguments = {{.name = "RUN"}},
       .brief = "show a run's details: plans, step times, memory and parameters of each rank",
       .run = DescribeRun},
      {.name = "watch",
       .arguments = {{.name = "RUN", .optional = true}},
       .brief = "print one line per change until the run ends",
       .run = WatchRuns},
      {.name = "members",
       .brief = "list workers and aggregators with their heartbeats",
       .run = ShowMembers},
      {.name = "events",
       .arguments = {{.name = "RUN", .optional = true}},
       .flags = {Flag{"after", kCount, "N", "only events with higher numbers"}.Fallback("0").Max(
                     std::numeric_limits<uint64_t>::max()),
                 {"follow", kSwitch, "", "print further events as they happen"}},
       .brief = "list what has happened: members, groups, runs, evaluations",
       .run = ShowEvents},
      {.name = "history",
       .arguments = {{.name = "RUN"}},
       .flags = {Flag{"after", kCount, "N", "only entries with higher numbers"}.Fallback("0").Max(
           std::numeric_limits<uint64_t>::max())},
       .brief = "list the commits and evaluations of a run",
       .run = ShowHistory},
      {.name = "health", .brief = "check whether anything needs an operator", .run = CheckHealth}};
}

}  // namespace cadre
