// The plan that a group obeys: the one that the coordinator assigned, with the collectives chosen
// by what the links between its ranks show.
//
// Thread-safe (pure but for the collectives).
#pragma once

#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/link_cache.h"
#include "worker/transport/transport.h"

namespace cadre {

// A collective of all ranks. They measure the links, unless the assigned plan says what they are
// like, or rank 0's cache does; rank 0 chooses by the run's policy and tells the others, so that
// all hold the same plan, to the byte. A group of one rank has no links. `cache` may be null.
// `control` is for what they agree on, `data` for what is measured; both may be the same, and are
// where `kernels` compute on the host. Errors: InvalidArgument for a plan that does not fit the
// model or the devices; the transports'.
absl::StatusOr<v1::Plan> SettlePlan(const v1::RunSpec& spec, const v1::Assignment& assignment,
                                    Transport& control, Transport& data, Kernels& kernels,
                                    LinkCache* cache);

}  // namespace cadre
