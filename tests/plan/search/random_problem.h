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

// A problem with the model and batch of a spec and defaults for everything else.
OwnedProblem ProblemOfText(const std::string& text, int ranks);

// A random chain of layers, or branches that are added or concatenated, on hardware with a random
// selection of limits and measurements.
OwnedProblem RandomProblem(std::mt19937& random, int ranks);

}  // namespace cadre::testing
