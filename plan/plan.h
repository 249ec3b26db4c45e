// A plan: all choices of how one group divides its model and its work, as a value.
//
// For each layer it lists which mesh axes split which index of the operation; the layouts of all
// tensors follow from the table of model/op_indices.h. A move (tensor/move.h) connects a layer's
// output with a consumer's input if their layouts differ or a halo is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/op_indices.h"
#include "model/parameter_index.h"
#include "plan/cost/collective_cost.h"
#include "proto/cadre/v1/plan.pb.h"
#include "tensor/collective.h"
#include "tensor/interval.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"

namespace cadre {

// Parameters whose gradients are reduced together.
struct Bucket {
  // Positions in the parameter index, ascending. The gradients of all these parameters are on the
  // same ranks, summed over the same axes and replicated along the same axes.
  std::vector<int> parameters;
  // Gradients are summed over these axes.
  std::vector<std::string> axes;
  // Axes along which ranks hold equal gradients after that sum. Nothing is reduced over them; they
  // divide the ownership of the slices further.
  std::vector<std::string> replica_axes;
  // Only the ranks at these coordinates hold the parameters; empty: all ranks.
  std::vector<AxisCoordinate> at;
  // The algorithm that reduces the gradients and gathers the weights.
  Algorithm algorithm = Algorithm::kRing;

  // `axes`, then `replica_axes`: the ranks along these axes divide the ownership of the bucket.
  std::vector<std::string> owner_axes() const;
  // "[data] shared by [model] on stage@1".
  std::string AxesText() const;
};

struct Plan {
  Mesh mesh;
  // One per layer of the graph.
  std::vector<LayerLayouts> layers;
  // In the order in which backward completes them.
  std::vector<Bucket> buckets;
  // Blocks of layers whose activations are discarded and computed again for backward, in ascending
  // order (plan/recomputation.h).
  std::vector<Interval> recomputed;
  // The link for which buckets and algorithms were chosen (plan/plan_collectives.h), and its kind.
  // Unknown before the link is measured.
  LinkProfile link;
  v1::LinkProfile::Kind link_kind = v1::LinkProfile::KIND_UNSPECIFIED;
};

// Whether the plan places layers on some of the ranks.
bool PlacesLayers(const Plan& plan);

// Axes along which ranks hold equal shards of a layer's parameter (by its number within the layer)
// and of its summed gradient, in the mesh's order; not the axes of the layer's coordinates.
std::vector<std::string> ReplicaAxes(const LayerLayouts& layer, int parameter, const Mesh& mesh);

// How MakeBuckets divides parameters into buckets.
struct BucketRules {
  // Local elements of a full bucket, by the number of ranks that sum it; 0 or not set: no limit.
  std::function<int64_t(int ranks)> max_elements;
  // One per layer: layers of different kinds share no bucket. Empty: all layers are of one kind.
  std::vector<int> kinds;
  Algorithm algorithm = Algorithm::kRing;
};

// Divides the parameters into buckets: from the last layer to the first, parameters with equal axes
// share a bucket until it is full. The result is in the order in which backward completes buckets.
std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, const BucketRules& rules);
// Buckets of up to `max_elements` local elements (0: no limit), reduced by rings.
std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, int64_t max_elements = 0);

// Elements of a parameter's shard, and of a bucket's buffer, on the rank that holds the most.
int64_t LocalElements(const Shape& shape, const Layout& layout, const Mesh& mesh);
int64_t BufferElements(const Plan& plan, const ParameterIndex& index, const Bucket& bucket);

// Converts and checks a plan. Errors: InvalidArgument for a mesh, name, index or axis that is
// malformed or not in the model, naming the layer or bucket; for parameters that are not in exactly
// one bucket, with the axes of their gradients; for an impossible link. Guarantees: the result is
// legal.
absl::StatusOr<Plan> PlanFromProto(const v1::Plan& proto, const Graph& graph,
                                   const ParameterIndex& index);
std::vector<AxisCoordinate> CoordinatesFromProto(
    const google::protobuf::RepeatedPtrField<v1::AxisCoordinate>& proto);
v1::Plan PlanToProto(const Plan& plan, const ParameterIndex& index);

// Errors: InvalidArgument, naming layer or bucket, if the plan is not legal for the graph.
absl::Status CheckPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

// A readable table: layers with their splits and layouts, the moves between them, the link, and the
// buckets with their bytes and, if the link is known, predicted seconds.
std::string PrintPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

}  // namespace cadre
