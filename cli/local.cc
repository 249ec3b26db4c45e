// The run file is read and validated before any process starts, so that its errors are reported
// within milliseconds.
#include "absl/time/clock.h"
#include "base/status.h"
#include "cli/cluster_run.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/render.h"
#include "cli/spec_file.h"
#include "cli/summary.h"

namespace cadre {

absl::StatusOr<int> RunLocal(const Invocation& in) {
  CADRE_ASSIGN_OR_RETURN(const SpecFlags flags, SpecFlagsOf(in.line));
  CADRE_ASSIGN_OR_RETURN(const std::string programs, ProgramsFolder());
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(in.line.argument(), flags);
  if (!loaded.ok()) return FailSpec(in.console, loaded.status());
  const bool cuda = loaded->spec.cluster().device() == v1::Cluster::CUDA;
  // Until here an interrupt ends the program; from here on there are processes to stop.
  BlockInterrupts();
  Progress progress(in.console.err, ProgressOnErr(in.global, in.console));
  const ClusterRunEnd end =
      RunOnCluster(loaded->spec,
                   {.programs = programs,
                    .dir = in.line.Get<std::string>("dir").value_or(""),
                    .threads = in.line.Value<uint32_t>("threads"),
                    .device = in.line.Get<std::string>("device").value_or(cuda ? "cuda" : "cpu"),
                    .restart = in.line.Value<bool>("restart"),
                    .lease = absl::Milliseconds(in.line.Value<uint32_t>("lease-ms")),
                    .deadline = DeadlineOf(in.global, absl::Now()),
                    .note = loaded->begins},
                   progress);
  // The summary is printed for failed runs as well.
  if (end.status.ok() && !end.interrupt) {
    Print(end.summary, in.global, in.console, JsonLayout::kOneLine);
  }
  return ReportFailure(end, in.console);
}

}  // namespace cadre
