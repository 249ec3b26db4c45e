// One run on a cluster of its own on this machine: starts the processes, submits the run, follows
// it to its end, ends the processes.
//
// Call on the main thread; interrupts must be blocked (cli/interrupt.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/console.h"
#include "cli/progress.h"
#include "cli/summary.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct ClusterRunOptions {
  // Folder of the other programs.
  std::string programs;
  // Folder to keep everything in; empty: a temporary one, kept only when something failed.
  std::string dir;
  // Compute threads of each worker.
  uint32_t threads = 1;
  std::string device = "cpu";
  bool restart = true;
  absl::Duration lease = absl::Seconds(5);
  absl::Time deadline = absl::InfiniteFuture();
  // Told once the run is about to begin; empty: nothing.
  std::string note;
  // What is seen of the run on the way. Optional.
  std::function<void(const v1::RunStatus&)> on_update;
};

struct ClusterRunEnd {
  // OK: the run is over, and summary.run.state() says how; or there was an interrupt.
  absl::Status status;
  // The signal that ended it.
  std::optional<int> interrupt;
  Summary summary;
  // The processes were there: until then, errors are about this machine alone.
  bool started = false;
  // Where the processes' logs lie, if they are worth a look; empty: they are gone, or never were.
  std::string logs;

  bool done() const { return status.ok() && !interrupt && summary.run.state() == v1::DONE; }
};

// Requires: the spec is checked, and says how many groups, ranks and aggregators there are.
ClusterRunEnd RunOnCluster(const v1::RunSpec& spec, const ClusterRunOptions& options,
                           Progress& progress);

// Says on err what went wrong, and where the logs are; nothing for a run that is done. Returns the
// exit code that it comes to.
int ReportFailure(const ClusterRunEnd& end, const Console& console);

}  // namespace cadre
