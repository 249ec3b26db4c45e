// The plan as a value: every parallel choice of one group, checked against the model.
//
// Per layer it says which mesh axes split which index of the operation; the layouts of all tensors
// follow by the table of spec/op_indices.h. Between a layer's output and the input of the layer
// that takes it stands a move (tensor/move.h) where the layouts differ or a halo is needed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "spec/graph.h"
#include "spec/op_indices.h"
#include "spec/parameter_index.h"
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
  std::string algorithm;
};

struct Plan {
  Mesh mesh;
  // One per layer of the graph.
  std::vector<LayerLayouts> layers;
  // In the order in which backward finishes them.
  std::vector<Bucket> buckets;
};

// Axes along which ranks hold the same of a layer's parameter (its number within the layer) and,
// once it is summed, of its gradient. In the mesh's order.
std::vector<std::string> SameAxes(const LayerLayouts& layer, int parameter, const Mesh& mesh);

// The buckets that go with the layers' layouts: parameters with equal axes are put together, last
// layer first, up to `most_elements` local elements a bucket (0: no limit).
std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers, const Mesh& mesh,
                                const ParameterIndex& index, int64_t most_elements = 0);

// Errors: InvalidArgument for a mesh, name, index or axis that is malformed or not in the model,
// naming the layer or bucket; for parameters that are not in exactly one bucket, with the axes of
// their gradients. What comes out is legal.
absl::StatusOr<Plan> PlanFromProto(const v1::Plan& proto, const Graph& graph,
                                   const ParameterIndex& index);
v1::Plan PlanToProto(const Plan& plan, const ParameterIndex& index);

// Whether the plan is legal for the graph. Errors: InvalidArgument naming layer or bucket.
absl::Status CheckPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

// A table for people: layers with their splits and layouts, the moves between them, the buckets.
std::string PrintPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

}  // namespace cadre
