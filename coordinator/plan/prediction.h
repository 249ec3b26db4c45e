// What a step of a plan takes, part by part, on a machine: the clock that runs are held against.
//
// A rank's own thread computes layer by layer and moves activations; its communication thread
// reduces, updates and gathers beside it (coordinator/cost/overlap.h plays the two). Where a host's
// cores are fewer than its ranks' threads, computing is slowed by the processor's share of the
// communication that hides behind it. Moves and collectives share a rank's link: a step is never
// shorter than both together.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/plan/layer_bytes.h"
#include "coordinator/plan/plan_problem.h"
#include "proto/cadre/v1/profile.pb.h"
#include "spec/plan.h"

namespace cadre {

// Of the rank that has most to do. Fractions are kept.
struct LayerPrediction {
  LayerSeconds compute;
  // Moves of what the layer takes in, and of its gradient.
  double move_forward = 0;
  double move_backward = 0;
  double move_words = 0;
  // Its share of its bucket: gradients and weights.
  double collective = 0;
  double collective_words = 0;
  double update = 0;
  // LayerBytes of layer_bytes.h: an upper bound.
  int64_t memory_bytes = 0;

  double communication() const { return move_forward + move_backward + collective; }
  double words() const { return move_words + collective_words; }
};

struct Prediction {
  std::vector<LayerPrediction> layers;
  v1::StepTimes times;
  // Everything one after the other.
  double serial_seconds = 0;
  // What computing takes of the step, as if nothing slowed it.
  double utilisation = 0;
  // What the step waits for most: "compute", "link" or "processor".
  std::string bound;
  double words_per_rank = 0;
  int64_t memory_bytes = 0;

  double communication_seconds() const { return times.moves() + times.collectives(); }
};

// Requires: the plan is legal for the problem's graph, and its mesh has the problem's ranks.
Prediction Predict(const PlanProblem& problem, const Plan& plan);

// Reducing a bucket's gradients and gathering its weights over the links of the problem's machine
// that the bucket travels over; 0 where nothing is known of them.
double BucketSeconds(const PlanProblem& problem, const Plan& plan, const Bucket& bucket);

// What is minimised: the step, or, where computing is unknown, communication.
double ObjectiveOf(const PlanProblem& problem, const Prediction& prediction);

// The plan with buckets and algorithms for the problem's machine and policy, of the size that the
// rule says (spec/plan_collectives.h). A group's workers make their buckets by the same rule.
Plan WithBuckets(const PlanProblem& problem, Plan plan);

// With the buckets of least predicted objective among a few sizes and all policies' algorithms: for
// AUTO, where the link is known; else as WithBuckets. Guarantees: not slower than WithBuckets under
// any policy.
Plan WithBestBuckets(const PlanProblem& problem, Plan plan);

}  // namespace cadre
