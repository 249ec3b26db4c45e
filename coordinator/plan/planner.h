// From a run spec and a number of workers to a plan.
//
// The mesh is {data, space, model}. Rules, by layer:
//
//   images        samples over data and model, rows over space: all ranks work on them
//   products      fully connected: samples over data, outputs over model and space; one that takes
//                 what such a one left split takes it as it is, by its inputs, where that travels
//                 less; attention: heads over model
//   elementwise   where the values are
//   norms, joins  samples where they are, features whole
//   loss          samples over all ranks
//
// So images are data and domain parallel, products are model parallel, and together they are the
// group hybrid; with one model rank all is data parallel. Which mesh is best is not searched for
// here (coordinator/plan/search.h does): the spec or a rule says. Meshes and layers that the spec
// pins are as it says.
//
// Buckets and their algorithms follow from the links and from spec.cluster.collectives
// (spec/plan_collectives.h). A coordinator knows no links: its plans leave the choice to the ranks,
// who measure.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/collective_cost.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"

namespace cadre {

// The plan of a group of `ranks` workers. A mesh that the spec pins is taken as it is. `space` has
// spec.cluster.space_ranks ranks, if the model takes images; it is left out of the mesh where that
// is one. `model` has model_ranks, or, when that is 0, all others if the model has a fully
// connected layer and one otherwise. In a group that is smaller than the spec wants, each has the
// largest divisor of the ranks left that is not above that. Ranks without samples are legal.
// Requires: ranks >= 1. Errors: InvalidArgument for a model that is malformed, and for pins that
// contradict it or one another.
absl::StatusOr<v1::Plan> MakePlan(const v1::RunSpec& spec, int ranks);

// The same as a value, for links that are known. `bucket_elements` as in WithCollectives.
absl::StatusOr<Plan> MakePlan(const v1::RunSpec& spec, int ranks, const Graph& graph,
                              const ParameterIndex& index, const LinkProfile& link,
                              std::string link_kind,
                              std::optional<int64_t> bucket_elements = std::nullopt);

}  // namespace cadre
