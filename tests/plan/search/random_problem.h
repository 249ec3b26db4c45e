// Random small models and hardware, for comparing the search with exhaustive enumeration.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/search/plan_problem.h"

namespace cadre::testing {

// A problem with the graph that it borrows.
struct OwnedProblem {
  std::string text;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<ParameterIndex> index;
  PlanProblem problem;
};

// The model and batch of a spec; everything else has its default.
OwnedProblem ProblemOfText(const std::string& text, int ranks);

// A chain, or branches that are added or joined, of `layers` layers or a few more, on a hardware
// that has some of what machines have.
OwnedProblem RandomProblem(std::mt19937& random, int ranks);

}  // namespace cadre::testing
