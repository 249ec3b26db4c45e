// Makes the plan of a group by fixed rules, from a run spec and a number of workers.
//
// The mesh is {data, space, model}. The rules, by kind of layer:
//
//   images        samples over data and model, rows over space: all ranks share the work
//   products      fully connected: samples over data, outputs over model and space; a layer whose
//                 input is already split by features keeps that split, by its inputs, if it has
//                 fewer outputs than inputs; attention: heads over model
//   elementwise   the layout of the input
//   norms, joins  samples as in the input, features whole
//   loss          samples over all ranks
//
// Images are thus data and domain parallel, products are model parallel, and together they form
// group hybrid parallelism; with one model rank everything is data parallel. The best mesh is not
// searched for here (plan/search/search.h does that): the spec or a rule decides. Meshes and
// layers that the spec pins are used as given.
//
// Buckets and their algorithms follow from the links and from spec.cluster.collectives
// (plan/plan_collectives.h). A coordinator has no measured links; its plans leave the choice to the
// ranks, which measure them.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cost/collective_cost.h"
#include "plan/plan.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The plan of a group of `ranks` workers. A mesh that the spec pins is used as given. Otherwise
// `space` has spec.cluster.space_ranks ranks if the model takes images, and is omitted if that is
// 1; `model` has model_ranks, or, if that is 0, all remaining ranks if the model has a fully
// connected layer and one otherwise. In a group with fewer ranks than the spec requests, each has
// the largest divisor of the remaining ranks that does not exceed that number. Ranks without
// samples are legal. Requires: ranks >= 1. Errors: InvalidArgument for a malformed model, and for
// pins that contradict it or one another.
absl::StatusOr<v1::Plan> MakePlan(const v1::RunSpec& spec, int ranks);

// The same as a value, for known links. `bucket_elements` as in WithCollectives.
absl::StatusOr<Plan> MakePlan(const v1::RunSpec& spec, int ranks, const Graph& graph,
                              const ParameterIndex& index, const LinkProfile& link,
                              v1::LinkProfile::Kind link_kind,
                              std::optional<int64_t> bucket_elements = std::nullopt);

}  // namespace cadre
