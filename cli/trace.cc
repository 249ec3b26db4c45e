// A trace is summarized rank by rank, and written in the format of Chrome's trace viewer and
// Perfetto.
//
// Intervals of one category may overlap: a collective runs in the background while another is on
// the main thread, and an interval may contain others. The time of a category is therefore the
// length of the union of its intervals. Only waits of the main thread count as exposed
// communication: the background thread waits for work most of the time.
//
// The target file is checked before the request, because recording takes up to two minutes, which
// an error in the path would waste. The file is written atomically, so a failure leaves an older
// trace unchanged.
#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/trace.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/render.h"
#include "cli/table.h"

namespace cadre {
namespace {

constexpr absl::Duration kDefaultTimeout = absl::Minutes(2);
constexpr char kStdout[] = "-";
// The rank's own thread (base/trace.h).
constexpr uint32_t kMainTrack = 0;

// Begins and ends of intervals, in microseconds.
using Spans = std::vector<std::pair<int64_t, int64_t>>;

// The length of the union of intervals, which may contain each other or overlap.
double CoveredSeconds(Spans spans) {
  std::sort(spans.begin(), spans.end());
  int64_t covered = 0;
  int64_t until = spans.empty() ? 0 : spans.front().first;
  for (const auto& [begin, end] : spans) {
    covered += std::max<int64_t>(0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return static_cast<double>(covered) * 1e-6;
}

// The times of one rank in seconds per step; zeros if the trace has no complete step.
Json TimesJson(const v1::RankTrace& trace) {
  std::map<std::string, Spans> spans;
  int steps = 0;
  for (const v1::TraceEvent& event : trace.events()) {
    if (event.category() == "step") ++steps;
    if (event.category() == "wait" && event.track() != kMainTrack) continue;
    if (event.duration_us() <= 0) continue;
    spans[event.category()].emplace_back(event.begin_us(), event.begin_us() + event.duration_us());
  }
  const auto seconds = [&](const char* category) {
    return CoveredSeconds(spans[category]) / std::max(steps, 1);
  };
  const double step = seconds("step");
  const double wait = seconds("wait");
  return {{"rank", trace.rank()},
          {"worker", trace.worker()},
          {"host", trace.host()},
          {"steps", steps},
          {"step_seconds", step},
          {"compute_seconds", seconds("compute")},
          {"move_seconds", seconds("move")},
          {"collective_seconds", seconds("collective")},
          {"exposed_wait_seconds", wait},
          {"exposed_share", step > 0 ? wait / step : 0},
          {"events", trace.events_size()},
          {"dropped", trace.dropped()}};
}

std::string TimesTable(const Json& ranks) {
  const auto ms = [](const Json& seconds) {
    return absl::StrFormat("%.2f ms", 1e3 * seconds.get<double>());
  };
  Table table({"RANK", "WORKER", "STEPS", "STEP", "COMPUTE", "MOVES", "COLLECTIVES", "EXPOSED WAIT",
               "OF STEP"});
  for (const Json& rank : ranks) {
    table.AddRow({OneLine(rank["rank"]), rank["worker"].get<std::string>(), OneLine(rank["steps"]),
                  ms(rank["step_seconds"]), ms(rank["compute_seconds"]), ms(rank["move_seconds"]),
                  ms(rank["collective_seconds"]), ms(rank["exposed_wait_seconds"]),
                  absl::StrFormat("%.1f %%", 100 * rank["exposed_share"].get<double>())});
  }
  return table.Text();
}

// The file for trace viewers. Each rank is a process, as the viewers group threads by process.
std::string TraceFile(const v1::TraceReply& trace, uint32_t group) {
  std::vector<TraceProcess> processes;
  for (const v1::RankTrace& rank : trace.ranks()) {
    TraceProcess& process = processes.emplace_back();
    process.name = absl::StrCat("group ", group, " rank ", rank.rank(), " (", rank.worker(),
                                rank.host().empty() ? "" : " on ", rank.host(), ")");
    for (const v1::TraceEvent& event : rank.events()) {
      process.intervals.push_back(
          {.name = event.name(),
           .category = event.category(),
           .track = static_cast<int>(event.track()),
           .begin_us = event.begin_us(),
           .duration_us = event.duration_us(),
           .bytes = event.has_bytes() ? static_cast<int64_t>(event.bytes()) : -1,
           .step = event.step()});
    }
  }
  return ChromeTraceJson(processes);
}

// Checks the target before the trace is recorded. A device, for example, must not be replaced by a
// file.
absl::Status CheckTarget(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write ", path, ": no such directory: ", folder.string()));
  }
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found ||
      type == std::filesystem::file_type::regular) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write ", path, ": it is not a regular file (-O - writes to stdout)"));
}

// Tells the user how to view the trace, on stderr, because stdout has the table or the trace.
void Hint(const std::string& path, const v1::TraceReply& trace, std::ostream& err) {
  uint64_t dropped = 0;
  for (const v1::RankTrace& rank : trace.ranks()) dropped += rank.dropped();
  if (dropped > 0) {
    err << "cadre: " << dropped
        << " intervals did not fit into the trace, so the figures are too low; trace fewer steps"
        << std::endl;
  }
  if (path != kStdout) {
    err << "cadre: wrote " << path << "; open it at https://ui.perfetto.dev or chrome://tracing"
        << std::endl;
  }
}

}  // namespace

absl::StatusOr<int> TraceRun(const Invocation& in) {
  const GlobalOptions& options = in.global;
  const Console& console = in.console;
  const std::string run = in.line.argument();
  const auto group = in.line.Value<uint32_t>("group");
  const std::string path =
      in.line.Get<std::string>("output").value_or(absl::StrCat("trace-", run, ".json"));
  const bool to_stdout = path == kStdout;
  if (!to_stdout) CADRE_RETURN_IF_ERROR(CheckTarget(path));
  const absl::Time deadline = absl::Now() + options.timeout.value_or(kDefaultTimeout);
  CADRE_ASSIGN_OR_RETURN(const auto client, MakeClient(options));
  const absl::StatusOr<v1::TraceReply> reply =
      client->Trace(run, group, in.line.Value<uint32_t>("steps"), deadline);
  if (!reply.ok()) return Fail(console, reply.status());

  const std::string file = TraceFile(*reply, group);
  if (to_stdout) {
    console.out << file << std::flush;
  } else {
    CADRE_RETURN_IF_ERROR(WriteFileAtomically(path, file));
  }
  if (!to_stdout || !options.quiet) {
    Json ranks = Json::array();
    for (const v1::RankTrace& rank : reply->ranks()) ranks.push_back(TimesJson(rank));
    const Console summary{.out = to_stdout ? console.err : console.out, .err = console.err};
    Print({{"run", run}, {"group", group}, {"file", path}, {"ranks", ranks}}, TimesTable(ranks),
          options, summary);
  }
  if (!options.quiet) Hint(path, *reply, console.err);
  return kExitOk;
}

}  // namespace cadre
