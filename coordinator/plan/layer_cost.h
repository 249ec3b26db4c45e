// What one layer of a plan costs as it is cut, and what a whole plan costs as a sum of layers and
// moves: what the search minimises. A step's true course, with communication beside computing, is
// prediction.h's.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "coordinator/plan/layer_bytes.h"
#include "coordinator/plan/plan_problem.h"
#include "spec/collective_cost.h"
#include "spec/graph.h"
#include "spec/op_indices.h"
#include "spec/plan.h"
#include "tensor/mesh.h"

namespace cadre {

// Seconds of a step, all micro-batches, on the rank that has most to do.
struct LayerCost {
  // Forward and backward.
  double compute = 0;
  // Reducing its gradients and gathering its weights, as if they were a bucket of their own, and
  // updating the slice that a rank owns.
  double collective = 0;
  double update = 0;

  // What a communication thread does weighs less where it hides behind computing.
  double sum(double weight) const { return compute + weight * (collective + update); }
};

LayerCost CostOfLayer(const PlanProblem& problem, const Mesh& mesh, int layer,
                      const LayerLayouts& layouts);

// Layers and moves, one after the other. Requires: the plan is legal for the problem's graph.
double PlanCost(const PlanProblem& problem, const Plan& plan, double weight = 1);
// LayerBytes of all layers.
int64_t PlanBytes(const PlanProblem& problem, const Plan& plan);

// Seconds to reduce `elements` that each rank holds among `sum` ranks and to gather them among
// `own`, by what the policy says for the layer, or by what is quickest.
double CollectiveSeconds(v1::CollectivePolicy policy, const GraphLayer& layer, int64_t elements,
                         int sum, int own, const LinkProfile& reducing,
                         const LinkProfile& gathering);

}  // namespace cadre
