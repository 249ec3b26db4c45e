// Problems for tests of the search: small, random and of the zoo. A reference implementation of the
// quantities that the search minimises, computed from the layouts of a whole plan.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "plan/search/plan_problem.h"
#include "tests/model/testing.h"

namespace cadre::testing {

// A problem with the graph that it borrows.
struct OwnedProblem {
  v1::RunSpec spec;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<ParameterIndex> index;
  PlanProblem problem;
};

// A problem with the model and batch of a spec and defaults for everything else.
OwnedProblem ProblemOfSpec(const v1::RunSpec& spec, int ranks);

// A zoo model on the link of Gholami et al. (2 us, 6 GB/s) and workers with 1 Tflop/s.
OwnedProblem ZooProblem(const std::string& name, int ranks, int64_t batch);

// Branches of six fully connected layers, whose outputs are added. A message between branches is
// smaller than the gradients, and than what layers exchange if each of them is split.
OwnedProblem BranchesProblem(int ranks,
                             const std::vector<std::string>& branches = {"left", "right"});

// A random chain of layers, or branches that are added or concatenated, on hardware with a random
// selection of limits and measurements.
OwnedProblem RandomProblem(std::mt19937& random, int ranks);

// Requires: the plan has the layer.
const LayerLayouts& LayerOf(const Plan& plan, const std::string& name);
// Serial seconds of a layer without its moves.
double LayerCost(const PlanProblem& problem, const Mesh& mesh, int layer,
                 const LayerLayouts& layouts);
// Serial seconds of all layers and moves. Requires: the plan is legal for the problem's graph.
double PlanCost(const PlanProblem& problem, const Plan& plan);
// The sum of LayerBytes over all layers.
int64_t PlanBytes(const PlanProblem& problem, const Plan& plan);

// A model of fully connected layers fc1, fc2, ... on square images, for worked numbers.
struct SmallModel {
  SmallModel(int side, const std::vector<int>& widths, int batch) {
    std::string text =
        absl::StrCat("batch_per_group: ", batch, " optimizer { sgd { momentum: 0.9 } } model { ",
                     "input { channels: 1 height: ", side, " width: ", side, " } ");
    for (size_t l = 0; l < widths.size(); ++l) {
      absl::StrAppend(&text, "layer { name: 'fc", l + 1,
                      "' fully_connected { out_features: ", widths[l], " } } ");
    }
    spec = SpecOf(absl::StrCat(text, "layer { name: 'loss' softmax_cross_entropy {} } }"));
    graph = *Graph::FromModel(spec.model());
    index = ParameterIndex::FromGraph(graph);
  }

  v1::RunSpec spec;
  Graph graph;
  ParameterIndex index;
};

}  // namespace cadre::testing
