// The plan that a group executes: the coordinator's, with collective algorithms chosen by measuring
// the links between the ranks.
//
// Thread-safe (pure but for the collectives).
#pragma once

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/link_cache.h"
#include "worker/transport/transport.h"

namespace cadre {

// A collective of all ranks. They measure the links, unless the assigned plan or rank 0's cache has
// a profile of them; rank 0 chooses by the run's policy and broadcasts, so that all ranks hold the
// same bytes. A group of one rank has no links. `cache` may be null. `data` is measured, `control`
// carries the agreement; both are the same transport where `kernels` compute on the host. Errors:
// InvalidArgument for a plan that does not fit the model or the devices; those of the transports.
absl::StatusOr<v1::Plan> SettlePlan(const v1::RunSpec& spec, const v1::Assignment& assignment,
                                    Transport& control, Transport& data, Backend& kernels,
                                    LinkCache* cache);

}  // namespace cadre
