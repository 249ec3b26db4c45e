// Trains one run on a temporary cluster on this machine: starts the processes, submits the run,
// follows it to its end, stops the processes.
//
// Call on the main thread; interrupts must be blocked (cli/interrupt.h).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/console.h"
#include "cli/follow.h"
#include "cli/local_cluster.h"
#include "cli/progress.h"
#include "cli/summary.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct ClusterRunOptions {
  // How processes are run. An empty folder means a temporary one, removed unless the run fails.
  // RunOnCluster adds the folders that the run names to its roots, and sets cluster.note,
  // cluster.hurry (kills the remaining processes during shutdown) and the numbers of workers and
  // aggregators.
  LocalClusterOptions cluster;
  absl::Time deadline = absl::InfiniteFuture();
  // Line that is printed before the run begins; empty: none.
  std::string line_before_run;
  // Called with each update of the run. Optional.
  std::function<void(const v1::RunStatus&)> on_update;
};

struct ClusterRunEnd {
  // OK: the run has ended in summary.run.state(), or was interrupted.
  absl::Status status;
  // The signal that interrupted the run, if any.
  std::optional<int> interrupt;
  Summary summary;
  // Whether the processes were started. If not, `status` is an error of the start, and the exit
  // code is kExitFailure whatever its code.
  bool started = false;
  // Folder of the processes' logs after a failure, also one of a checkpoint; else empty.
  std::string logs;

  bool done() const { return status.ok() && !interrupt && HasSucceeded(summary.run); }
};

// Requires: the run is valid, and its groups, ranks and aggregators are set.
ClusterRunEnd RunOnCluster(const v1::RunSpec& spec, ClusterRunOptions options, Progress& progress);

// Prints the error and the folder of the logs on err, or nothing if nothing has failed. Returns the
// exit code.
int ReportFailure(const ClusterRunEnd& end, const Console& console);

}  // namespace cadre
