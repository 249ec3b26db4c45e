// Times layers on one machine by all workers that share it, at the same time, as they will compute;
// and what lies between them.
//
// The workers are processes that find one another through files in a folder.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

struct MachineProbeOptions {
  // This process among the `ranks` workers.
  int rank = 0;
  int ranks = 1;
  // Where they find one another: theirs alone, empty before the first of them starts.
  std::string folder;
  // Compute threads of each.
  int threads = 1;
  bool shared_memory = true;
  // By then all must have come.
  absl::Time deadline = absl::InfiniteFuture();
  // As in LayerProbeOptions.
  std::function<void(int done, int plans)> progress;
};

// All workers call it with equal requests, and get the same: a profile of one host, which has the
// machine's name, cores, memory and `inside` where there are several workers, and of its device,
// whose times are medians over the workers.
// Errors: DeadlineExceeded naming who did not come; Unavailable when one of them fails; those of
// ProbeLayers and of the folder.
absl::StatusOr<v1::ClusterProfile> ProbeMachine(const v1::ProbeRequest& request,
                                                const MachineProbeOptions& options);

// What several devices that are alike have measured, as one: medians. Requires: at least one.
v1::DeviceProfile MergeDevices(const std::vector<v1::DeviceProfile>& devices);

}  // namespace cadre
