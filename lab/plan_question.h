// The input of a plan report: a model, the workers of a group, and the hardware assumed for them.
//
// Values; thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "lab/paper_strategies.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/search/plan_problem.h"
#include "proto/cadre/v1/profile.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The inputs of a plan report.
struct PlanRequest {
  // The run, with all overrides applied.
  v1::RunSpec spec;
  // Ranks of the group.
  int workers = 1;
  // The link between any two ranks: seconds per message, bytes per second in each direction,
  // seconds to add a byte. Without a link and a profile, no times are predicted.
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
  // Number of elements at which a bucket is full; nullopt: the planner chooses it for the link.
  std::optional<int64_t> bucket_elements;
  Strategy strategy = Strategy::kAuto;

  // The optional parts of the report.
  //
  // Strategies to compare.
  std::vector<Strategy> compare;
  // The largest number of groups to try; 0: as many as the table of epochs covers.
  std::optional<int> max_groups;
  // Epochs to a target accuracy by batch size, and samples per epoch: with both, the report
  // forecasts the time to the target.
  std::optional<v1::EpochsTable> epochs;
  std::optional<double> samples;
  // Whether to include the sensitivity (sensitivity.h); nullopt: if it is cheap.
  std::optional<bool> sensitivity;
};

// A request and what is derived from it. `problem` borrows from the other members.
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
  // The problem in the form that the papers' formulas use.
  HybridProblem paper_problem() const;
};

// If computation is not predicted, overlap is off: a step then consists of communication alone.
// Requires: a link or a profile if `compare` is not empty or `max_groups` or `epochs` is set;
// `samples` if `epochs` is set. Errors: those of Graph, HardwareOf and ProblemOf.
absl::StatusOr<std::unique_ptr<PlanQuestion>> MakePlanQuestion(PlanRequest request);

}  // namespace cadre
