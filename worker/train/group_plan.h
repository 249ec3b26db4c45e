// The plan that a group obeys: the one that the coordinator assigned, with the collectives chosen
// by what the links between its ranks show.
//
// Thread-safe (pure but for the collectives).
#pragma once

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/transport/transport.h"

namespace cadre {

// A collective of all ranks. They measure the links; rank 0 chooses by the run's policy and tells
// the others, so that all hold the same plan, to the byte. A plan that says what the links are like
// is not measured again; a group of one rank has none.
// Errors: InvalidArgument for a plan that does not fit the model; the transport's.
absl::StatusOr<v1::Plan> SettlePlan(const v1::RunSpec& spec, const v1::Plan& assigned,
                                    Transport& transport);

}  // namespace cadre
