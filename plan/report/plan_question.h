// The input of a plan report: a model, the workers of a group, and the hardware assumed for them.
//
// Values; thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cost/paper_strategies.h"
#include "plan/search/plan_problem.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct PlanRequest {
  // The run, with all overrides applied.
  v1::RunSpec spec;
  // Ranks of the group.
  int workers = 1;
  // The link between any two ranks: seconds per message, bytes per second each way, seconds to add
  // a byte. Neither a link nor a profile: nothing is predicted.
  struct Link {
    double alpha = 0;
    double bandwidth = 1;
    double gamma = 0;
  };
  std::optional<Link> link;
  // Floating-point operations per second of a worker; 0: computation is not predicted.
  double flops = 0;
  // Links, speeds and memory of a cluster, in place of `link` and `flops`.
  std::optional<v1::ClusterProfile> profile;
  // Limit in bytes per worker; 0: the profile's, if any.
  int64_t memory_bytes = 0;
  // Elements at which a bucket is full; nothing: chosen by the link.
  std::optional<int64_t> bucket_elements;
  Strategy strategy = Strategy::kAuto;

  // The optional parts of the report. Strategies to compare.
  std::vector<Strategy> compare;
  // The largest number of groups to try; 0: as many as the table of epochs covers.
  std::optional<int> max_groups;
  // With samples per epoch: forecasts the time to the table's target.
  std::optional<v1::EpochsTable> epochs;
  std::optional<double> samples;
  // Nothing: included if it is cheap.
  std::optional<bool> sensitivity;
};

// `problem` borrows from the other members.
struct PlanQuestion {
  PlanQuestion() = default;
  PlanQuestion(const PlanQuestion&) = delete;
  PlanQuestion& operator=(const PlanQuestion&) = delete;

  PlanRequest request;
  Graph graph;
  ParameterIndex index;
  NetworkShape network;
  PlanProblem problem;

  bool link_known() const { return problem.hardware.link.known(); }
  // The problem as the papers' formulas take it.
  HybridProblem paper_problem() const;
};

// Where computation is not predicted nothing overlaps: a step is its communication.
// Requires: a link or a profile if `compare`, `max_groups` or `epochs` is given; `samples` with
// `epochs`. Errors: those of Graph, HardwareOf and ProblemOf.
absl::StatusOr<std::unique_ptr<PlanQuestion>> MakePlanQuestion(PlanRequest request);

}  // namespace cadre
