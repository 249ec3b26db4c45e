// The target file is checked before the request, because recording takes up to two minutes, which
// an error in the path would waste. The file is written atomically, so a failure leaves an older
// trace unchanged.
#include <filesystem>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/atomic_file.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/render.h"
#include "cli/trace_summary.h"

namespace cadre {
namespace {

constexpr absl::Duration kDefaultTimeout = absl::Minutes(2);
constexpr char kStdout[] = "-";

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

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  CADRE_RETURN_IF_ERROR(file.Append(text));
  return file.Commit();
}

struct TraceResult {
  std::string run;
  uint32_t group;
  std::string file;
  std::vector<RankTimes> ranks;
};

Json ToJson(const TraceResult& result) {
  Json ranks = Json::array();
  for (const RankTimes& rank : result.ranks) ranks.push_back(ToJson(rank));
  return {{"run", result.run}, {"group", result.group}, {"file", result.file}, {"ranks", ranks}};
}

std::string ToText(const TraceResult& result) { return TimesTable(result.ranks); }

// Tells the user how to view the trace, on stderr, because stdout has the table or the trace.
void Hint(const std::string& path, const std::vector<RankTimes>& times, std::ostream& err) {
  uint64_t dropped = 0;
  for (const RankTimes& rank : times) dropped += rank.dropped;
  if (dropped > 0) {
    err << "cadre: " << dropped
        << " intervals did not fit, so the figures are too low; trace fewer steps" << std::endl;
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
  const absl::StatusOr<v1::TraceReply> reply =
      MakeClient(options).Trace(run, group, in.line.Value<uint32_t>("steps"), deadline);
  if (!reply.ok()) return Fail(console, reply.status());

  const std::string file = TraceFile(*reply, group);
  const std::vector<RankTimes> times = TimesOf(*reply);
  if (to_stdout) {
    console.out << file << std::flush;
  } else {
    CADRE_RETURN_IF_ERROR(WriteFile(path, file));
  }
  if (!to_stdout || !options.quiet) {
    const Console summary{.out = to_stdout ? console.err : console.out, .err = console.err};
    Print(TraceResult{run, group, path, times}, options, summary);
  }
  if (!options.quiet) Hint(path, times, console.err);
  return kExitOk;
}

}  // namespace cadre
