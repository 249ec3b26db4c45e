// Times layers on one host. All workers that share the host compute simultaneously, as they will in
// training. Also measures the link between the workers.
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
#include "base/hardware.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

struct MachineProbeOptions {
  // Rank of this process among the `ranks` workers.
  int rank = 0;
  int ranks = 1;
  // Folder through which the workers find one another. Nothing else uses it, and it is initially
  // empty.
  std::string folder;
  // Number of compute threads of each.
  int threads = 1;
  // Cores of the host, which all its workers share.
  int host_cores = UsableCores();
  bool shared_memory = true;
  // All workers must have connected by this time.
  absl::Time deadline = absl::InfiniteFuture();
  // As in LayerProbeOptions.
  std::function<void(int done, int plans)> progress;
};

// A collective of the workers, with equal requests. All get the same profile of one host (name,
// cores, memory and, for several workers, the link `inside`) and its device, whose times are
// medians over the workers. Errors: DeadlineExceeded, naming a worker that did not connect;
// Unavailable if one of them fails; those of ProbeLayers and of the folder.
absl::StatusOr<v1::ClusterProfile> ProbeMachine(const v1::ProbeRequest& request,
                                                const MachineProbeOptions& options);

// Merges the measurements of equal devices by their medians. Requires: at least one.
v1::DeviceProfile MergeDevices(const std::vector<v1::DeviceProfile>& devices);

}  // namespace cadre
