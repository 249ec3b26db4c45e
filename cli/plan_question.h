// The question that `cadre plan` answers: a model, a number of workers, and the machine that they
// are supposed to be.
//
// Thread-compatible.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "cli/plan_options.h"
#include "coordinator/cost/paper_strategies.h"
#include "coordinator/plan/plan_problem.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"

namespace cadre {

// Its problem borrows from it: it stays where it is.
struct PlanQuestion {
  PlanQuestion() = default;
  PlanQuestion(const PlanQuestion&) = delete;
  PlanQuestion& operator=(const PlanQuestion&) = delete;

  PlanOptions options;
  // With the flags' changes.
  v1::RunSpec spec;
  Graph graph;
  ParameterIndex index;
  NetworkShape network;
  PlanProblem problem;

  // Something can be predicted.
  bool link_known() const { return problem.machine.link.known(); }
  Strategy strategy() const { return options.strategy.value_or(Strategy::kAuto); }
  // The same as papers ask it.
  HybridProblem paper_problem() const;
};

// Reads and checks the spec. Where computing is not known nothing overlaps: a step is its
// communication. Errors: LoadSpec's, those of profiles and of pins; they say themselves where they
// are from.
absl::StatusOr<std::unique_ptr<PlanQuestion>> AskPlan(const PlanOptions& options);

}  // namespace cadre
