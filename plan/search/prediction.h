// Predicts how long a training step of a plan takes on modelled hardware, part by part. Measured
// steps of a run are compared with this prediction. prediction.cc explains the model.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/plan_problem.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

// The costs of one layer on the busiest rank. Elements may be fractions.
struct LayerPrediction {
  LayerSeconds compute;
  // Moves of the layer's inputs, and of their gradients.
  double move_forward = 0;
  double move_backward = 0;
  double move_elements = 0;
  // The layer's share of the collectives of its buckets: of gradients and of weights.
  double collective = 0;
  double collective_elements = 0;
  double update = 0;
  // LayerBytes of layer_bytes.h: an upper bound, or an estimate in plans that recompute blocks.
  int64_t memory_bytes = 0;

  double communication() const { return move_forward + move_backward + collective; }
  double elements() const { return move_elements + collective_elements; }
};

// The predicted step of a plan.
struct Prediction {
  std::vector<LayerPrediction> layers;
  v1::StepTimes times;
  // Seconds of the step without any overlap.
  double serial_seconds = 0;
  // Compute time without slowdown by communication, divided by the step time.
  double utilisation = 0;
  // The resource that limits the step: "compute", "link" or "processor".
  std::string bound;
  double elements_per_rank = 0;
  // The sum over the layers; or, if Search has computed it, the exact memory of the rank that needs
  // most.
  int64_t memory_bytes = 0;

  double communication_seconds() const { return times.moves() + times.collectives(); }
};

// A plan and its predicted step.
struct Candidate {
  Plan plan;
  Prediction prediction;
};

// Requires: the plan is legal for the problem's graph, and its mesh has the problem's ranks.
Prediction Predict(const PlanProblem& problem, const Plan& plan);

// The cost of a bucket over the links that it uses.
BucketCost CostOf(const PlanProblem& problem, const Plan& plan, const Bucket& bucket);

// The quantity that the search minimises: the step, or communication if compute time is not
// modelled.
double ObjectiveOf(const PlanProblem& problem, const Prediction& prediction);

// The plan with the buckets and algorithms that plan/plan_collectives.h chooses for the problem's
// hardware and policy. The workers of a group choose their buckets by the same rule.
Plan WithBuckets(const PlanProblem& problem, Plan plan);

// Under AUTO and with a known link: the plan with the buckets of minimum predicted objective, among
// a few sizes and the algorithms of all policies; otherwise the same as WithBuckets. Guarantees:
// not slower than WithBuckets under any policy.
Plan WithBestBuckets(const PlanProblem& problem, Plan plan);

}  // namespace cadre
