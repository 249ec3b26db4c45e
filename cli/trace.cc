#include "cli/trace.h"

#include <filesystem>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/atomic_file.h"
#include "base/status.h"
#include "cli/json.h"
#include "cli/trace_summary.h"

namespace cadre {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr char kStdout[] = "-";

// Found out before anybody is asked to trace. A device, say, must not be replaced by a file.
absl::Status CheckTarget(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write ", path, ": there is no folder ", folder.string()));
  }
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found ||
      type == std::filesystem::file_type::regular) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write ", path, ": it is no file (-O - writes to stdout)"));
}

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  CADRE_RETURN_IF_ERROR(file.Append(text));
  return file.Commit();
}

void PrintSummary(const GlobalOptions& options, const TraceOptions& trace, const std::string& path,
                  const std::vector<RankTimes>& times, std::ostream& out) {
  if (options.format == OutputFormat::kJson) {
    out << Indent(JsonObject()
                      .Add("run", trace.run)
                      .Add("group", trace.group)
                      .Add("file", path)
                      .AddRaw("ranks", TimesJson(times))
                      .Text())
        << std::endl;
    return;
  }
  out << TimesTable(times) << std::flush;
}

void Hint(const std::string& path, const std::vector<RankTimes>& times, std::ostream& err) {
  uint64_t dropped = 0;
  for (const RankTimes& rank : times) dropped += rank.dropped;
  if (dropped > 0) {
    err << "cadre: there was no room for " << dropped
        << " intervals, so the figures are too low; trace fewer steps" << std::endl;
  }
  if (path != kStdout) {
    err << "cadre: wrote " << path << "; open it at https://ui.perfetto.dev or chrome://tracing"
        << std::endl;
  }
}

}  // namespace

int TraceRun(const GlobalOptions& options, const TraceOptions& trace, const Console& console) {
  const bool to_stdout = trace.output == kStdout;
  const std::string path =
      trace.output.empty() ? absl::StrCat("trace-", trace.run, ".json") : trace.output;
  if (!to_stdout) {
    if (const absl::Status target = CheckTarget(path); !target.ok()) return Fail(console, target);
  }
  const absl::Time deadline = absl::Now() + options.timeout.value_or(kPatience);
  const absl::StatusOr<v1::TraceReply> reply =
      MakeClient(options).Trace(trace.run, trace.group, trace.steps, deadline);
  if (!reply.ok()) return Fail(console, reply.status());

  const std::string file = TraceFile(*reply, trace.group);
  const std::vector<RankTimes> times = TimesOf(*reply);
  if (to_stdout) {
    console.out << file << std::flush;
  } else if (const absl::Status written = WriteFile(path, file); !written.ok()) {
    return Fail(console, written);
  }
  if (!to_stdout || !options.quiet) {
    PrintSummary(options, trace, path, times, to_stdout ? console.err : console.out);
  }
  if (!options.quiet) Hint(path, times, console.err);
  return kExitOk;
}

}  // namespace cadre
