#include "cli/local.h"

#include "absl/time/clock.h"
#include "cli/cluster_run.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/summary.h"

namespace cadre {
namespace {

std::string DeviceFor(const v1::RunSpec& spec, const LocalOptions& options) {
  if (!options.device.empty()) return options.device;
  return spec.cluster().device() == v1::CUDA ? "cuda" : "cpu";
}

}  // namespace

int RunLocal(const GlobalOptions& global, const LocalOptions& options, const Console& console) {
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(options.spec, options.flags);
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  // From here on there is something to clean up; until here an interrupt just ends the program.
  BlockInterrupts();
  Progress progress(console.err, ProgressOnErr(global, console));
  const ClusterRunEnd end = RunOnCluster(loaded->spec,
                                         {.programs = options.programs,
                                          .dir = options.dir,
                                          .threads = options.threads,
                                          .device = DeviceFor(loaded->spec, options),
                                          .restart = options.restart,
                                          .lease = options.lease,
                                          .deadline = DeadlineOf(global, absl::Now()),
                                          .note = loaded->begins},
                                         progress);
  // A run that failed has figures too.
  if (end.status.ok() && !end.interrupt) {
    if (global.format == OutputFormat::kJson) {
      console.out << SummaryJson(end.summary) << std::endl;
    } else {
      console.out << SummaryText(end.summary) << std::flush;
    }
  }
  return ReportFailure(end, console);
}

}  // namespace cadre
