// The plan as a value: every parallel choice of one group, checked against the model.
//
// Per layer it says which mesh axes split which index of the operation; the layouts of all tensors
// follow by the table of spec/op_indices.h. Between a layer's output and the input of the layer
// that takes it stands a move (tensor/move.h) where the layouts differ or a halo is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "spec/collective_cost.h"
#include "spec/graph.h"
#include "spec/op_indices.h"
#include "spec/parameter_index.h"
#include "tensor/collective.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"

namespace cadre {

struct Bucket {
  // Positions in the parameter index, ascending. All with the same gradient sums and the same axes
  // in their layouts.
  std::vector<int> parameters;
  // Gradients are summed over these axes.
  std::vector<std::string> axes;
  // Axes along which ranks hold the same gradient once it is summed: they split the ownership of
  // the slices further and reduce nothing.
  std::vector<std::string> same;
  // By which its gradients are reduced and its weights gathered: ring, butterfly or
  // halving-doubling.
  Algorithm algorithm = Algorithm::kRing;
};

struct Plan {
  Mesh mesh;
  // One per layer of the graph.
  std::vector<LayerLayouts> layers;
  // In the order in which backward finishes them.
  std::vector<Bucket> buckets;
  // What buckets and algorithms were chosen by (spec/plan_collectives.h), and what connects the
  // ranks; unknown and empty before anybody has measured.
  LinkProfile link;
  std::string link_kind;
};

// Axes along which ranks hold the same of a layer's parameter (its number within the layer) and,
// once it is summed, of its gradient. In the mesh's order.
std::vector<std::string> SameAxes(const LayerLayouts& layer, int parameter, const Mesh& mesh);

struct BucketRules {
  // Local elements at which a bucket is full, by the ranks that sum it; 0: no limit. Not set: no
  // limit.
  std::function<int64_t(int ranks)> most_elements;
  // One per layer: layers of different kinds share no bucket. Empty: all are alike.
  std::vector<int> kinds;
  Algorithm algorithm = Algorithm::kRing;
};

// The buckets that go with the layers' layouts: parameters with equal axes are put together, last
// layer first, as long as the rules have room. In the order in which backward finishes them.
std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, const BucketRules& rules);
// Of up to `most_elements` local elements (0: no limit), reduced around rings.
std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, int64_t most_elements = 0);

// Elements of the bucket's buffer on the rank that holds most.
int64_t BufferElements(const Plan& plan, const ParameterIndex& index, const Bucket& bucket);

// Errors: InvalidArgument for a mesh, name, index or axis that is malformed or not in the model,
// naming the layer or bucket; for parameters that are not in exactly one bucket, with the axes of
// their gradients; for a link that cannot have been measured. What comes out is legal.
absl::StatusOr<Plan> PlanFromProto(const v1::Plan& proto, const Graph& graph,
                                   const ParameterIndex& index);
v1::Plan PlanToProto(const Plan& plan, const ParameterIndex& index);

// Whether the plan is legal for the graph. Errors: InvalidArgument naming layer or bucket.
absl::Status CheckPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

// A table for people: layers with their splits and layouts, the moves between them, the link, the
// buckets with their bytes and, where the link is known, the seconds that they are predicted to
// take.
std::string PrintPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

}  // namespace cadre
