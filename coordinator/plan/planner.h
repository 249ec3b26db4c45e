// From a run spec and a number of workers to a plan.
//
// The group hybrid: layers on images split the batch over all ranks; fully connected layers split
// their outputs over `model` and the batch over `data`; reshards between them follow from the
// layouts. (Which mesh is best is not searched for here: the spec or a rule says.)
//
// Thread-safe (pure function).
#pragma once

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The plan of a group of `ranks` workers. `model` has spec.cluster.model_ranks ranks, or, when that
// is 0, all ranks if the model has a fully connected layer and one otherwise; in a group that is
// smaller than the spec wants, the largest divisor of `ranks` not above that.
// Requires: ranks >= 1. Errors: InvalidArgument for a model that is malformed.
absl::StatusOr<v1::Plan> MakePlan(const v1::RunSpec& spec, int ranks);

}  // namespace cadre
