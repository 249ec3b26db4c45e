// The plan as a value: every parallel choice of one group, checked against the model.
//
// Table of legal layouts (the contract between planner and engine), `data` and `model` being mesh
// axes, dimension 0 the batch, dimension 1 channels or features:
//
//   layer                   input            output                     parameters
//   convolution, pooling,   {0: A}           the same                   replicated
//   relu on images
//   fully connected         {0: A}           {0: A, 1: B}, A and B      {0: B}
//                                            have no axis in common
//   relu on features        {0: A, 1: B}     the same                   -
//   softmax cross-entropy   {0: A}           -                          -
//
// where A and B are lists of axes, empty ones included; in a layer with parameters every axis of
// more than one rank is in A or B, since ranks that held and fed them alike would all own them. The
// gradient of a parameter is a partial sum over the axes A that split the samples, and that is what
// its bucket names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"

namespace cadre {

struct LayerLayouts {
  std::string name;
  Layout input;
  Layout output;
  // Weight and bias; empty for a layer without.
  std::vector<Layout> parameters;
};

struct Bucket {
  // Positions in the parameter index.
  std::vector<int> parameters;
  // Gradients are summed, and slices owned, over these axes.
  std::vector<std::string> axes;
  std::string algorithm;
};

struct Plan {
  Mesh mesh;
  std::vector<LayerLayouts> layers;
  // In the order in which backward finishes them.
  std::vector<Bucket> buckets;
};

// Errors: InvalidArgument for a mesh, name or parameter that is malformed or not in the index.
absl::StatusOr<Plan> PlanFromProto(const v1::Plan& proto, const ParameterIndex& index);
v1::Plan PlanToProto(const Plan& plan, const ParameterIndex& index);

// Whether the plan is legal for the graph: the table above, and every parameter in exactly one
// bucket, with the axes of its gradient. Errors: InvalidArgument naming layer or bucket.
absl::Status CheckPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

// A table for people: layers with their layouts, the reshards between them, the buckets.
std::string PrintPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index);

}  // namespace cadre
