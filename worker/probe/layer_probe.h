// Times a model's layers on this machine under plans for any number of ranks, by training steps of
// one rank whose peers are not there (loopback_transport.h).
//
// Rank 0 is the one that is played. Where a plan cuts a layer unevenly it has the smaller part; its
// time is then taken in proportion (worker/train/step_profile.h). The batch is rounded up to a
// multiple of the ranks, so that it has samples; times are filed under the part that was timed.
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
  // Called before the steps of each plan that is timed: workers that share a host wait for one
  // another here, so that they are timed as they will compute, at the same time. All that are given
  // the same request call it equally often. May be empty.
  std::function<absl::Status()> before_each_plan;
  // Plans that are done, of how many. May be empty.
  std::function<void(int done, int plans)> progress;
};

// A plan whose parts of layers were all timed under those before it is passed over. One entry for
// each layer and part: the median over plans. The device has no name yet. Holds one replica at a
// time.
// Errors: InvalidArgument for a request without plans, and for a plan that does not fit the model;
// OutOfRange when training does not stay finite; those of before_each_plan.
absl::StatusOr<v1::DeviceProfile> ProbeLayers(const v1::ProbeRequest& request, Backend& kernels,
                                              const LayerProbeOptions& options = {});

}  // namespace cadre
