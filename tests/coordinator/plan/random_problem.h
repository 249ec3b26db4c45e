// Small models and machines by seed, for tests that hold the search against all there is.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "coordinator/plan/plan_problem.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"

namespace cadre::testing {

// A problem with the graph that it borrows.
struct OwnedProblem {
  std::string text;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<ParameterIndex> index;
  PlanProblem problem;
};

// Of a spec's text: its model and batch, and nothing else.
OwnedProblem ProblemOfText(const std::string& text, int ranks);

// A chain, or branches that are added or joined, of `layers` layers or a few more, on a machine
// that has some of what machines have.
OwnedProblem RandomProblem(std::mt19937& random, int ranks);

}  // namespace cadre::testing
