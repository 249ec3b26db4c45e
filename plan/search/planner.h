// Makes the plan of a group by fixed rules, from a run spec and a number of workers.
//
// The mesh is {data, space, model}. The rules, by kind of layer:
//
//   images        samples over data and model, rows over space: all ranks share the work
//   products      fully connected: samples over data, outputs over model and space; but a layer
//                 with fewer outputs than inputs whose input is already split by features is split
//                 by its inputs; attention: heads over model
//   elementwise   the layout of the input
//   norms, joins  samples as in the input, features whole
//   loss          samples over all ranks
//
// Images are thus data and domain parallel, products are model parallel, and together they form
// group hybrid parallelism; with one model rank everything is data parallel. The spec or a rule
// determines the mesh; plan/search/search.h searches for the best one instead. Pins of the spec are
// respected. A layer that they place at a coordinate of an axis is not split over that axis.
//
// Blocks of layers are recomputed if the spec requests it (Recomputation::ALL).
//
// Buckets and their algorithms follow from the links and from spec.cluster.collectives
// (plan/plan_collectives.h). A coordinator has not measured any links, so its plans leave this
// choice to the ranks, which measure them.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cost/collective_cost.h"
#include "plan/plan.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The plan of a group of `ranks` workers. A pinned mesh is used unchanged. Otherwise `space` has
// spec.cluster.space_ranks ranks if the model takes images; an axis of one rank is omitted. `model`
// has model_ranks ranks or, if model_ranks is 0, all remaining ranks if the model has a fully
// connected layer, and one rank if not. In a group with fewer ranks than the spec requests, an axis
// gets the largest divisor of the remaining ranks that does not exceed its requested size. Ranks
// without samples are legal. Requires: ranks >= 1. Errors: InvalidArgument for a malformed model,
// for pins that contradict the model or one another, and for statistics of one value
// (plan/norm_statistics.h).
absl::StatusOr<v1::Plan> MakePlan(const v1::RunSpec& spec, int ranks);

// The same plan as a C++ value, for a known link. `bucket_elements` is as in WithCollectives.
absl::StatusOr<Plan> MakePlan(const v1::RunSpec& spec, int ranks, const Graph& graph,
                              const ParameterIndex& index, const LinkProfile& link,
                              v1::LinkProfile::Kind link_kind,
                              std::optional<int64_t> bucket_elements = std::nullopt);

}  // namespace cadre
