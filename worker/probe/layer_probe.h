// Times a model's layers on this host, under plans for any number of ranks. Rank 0 executes
// training steps without its peers (loopback_transport.h).
//
// If a plan splits a layer unevenly, rank 0 has the smaller part, and its time is scaled in
// proportion (worker/train/step_profile.h). The batch is rounded up to a multiple of the ranks, so
// that rank 0 has samples; a time is recorded for the part of the layer that was timed.
//
// Thread-compatible.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

struct LayerProbeOptions {
  // Called before the steps of each plan that is timed. Workers that share a host synchronize here,
  // so that they are timed while all of them compute. It is called equally often for equal
  // requests. May be empty.
  std::function<absl::Status()> before_each_plan;
  // Called after each plan. May be empty.
  std::function<void(int done, int plans)> progress;
};

// Skips a plan if earlier plans have covered all its layer parts. The result has one entry for each
// layer and part, the median over plans, and no device name. Only one replica exists at a time.
// Errors: InvalidArgument for a request without plans, and for a plan that does not fit the
// model; OutOfRange if the loss becomes non-finite; those of before_each_plan.
absl::StatusOr<v1::DeviceProfile> ProbeLayers(const v1::ProbeRequest& request, Backend& kernels,
                                              const LayerProbeOptions& options = {});

}  // namespace cadre
