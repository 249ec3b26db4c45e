// Runs a training step and an evaluation of one rank of a group on devices, without its peers.
//
// The first use of an operation is slow, and unlike later uses it may wait for the whole device:
// libraries choose and load kernels, cuDNN makes plans, scratch memory is allocated. If that
// happened while a collective waits for a peer on the device, and the peer's host waits for this
// rank, the group would stop. So every rank does a step before the devices are connected.
//
// The cost is a step, and a second initialization of the weights. Only shapes matter: inputs are
// zeros, and what peers would send is missing.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Executes rank `rank` of the plan. Collectives need no algorithms yet. Errors: those of
// Replica::Make and Replica::Step, except a loss that is not finite for lack of the peers' values.
// Requires: no work is pending on the kernels' device.
absl::Status WarmUp(const v1::RunSpec& spec, const v1::Plan& plan, Backend& kernels, int rank);

}  // namespace cadre
