#include "cli/local.h"

#include "absl/time/clock.h"
#include "cli/cluster_run.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/render.h"
#include "cli/summary.h"

namespace cadre {
namespace {

std::string DeviceFor(const v1::RunSpec& spec, const LocalOptions& options) {
  if (!options.device.empty()) return options.device;
  return spec.cluster().device() == v1::Cluster::CUDA ? "cuda" : "cpu";
}

}  // namespace

int RunLocal(const GlobalOptions& global, const LocalOptions& options, const Console& console) {
  const absl::StatusOr<LoadedSpec> loaded = LoadSpec(options.spec, options.flags);
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  // Until here an interrupt ends the program; from here on there are processes to stop.
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
  // A run that failed has a summary, too.
  if (end.status.ok() && !end.interrupt) {
    Print(end.summary, global, console, JsonLayout::kOneLine);
  }
  return ReportFailure(end, console);
}

}  // namespace cadre
