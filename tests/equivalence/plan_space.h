// The plans that a graph allows on a number of ranks, and selections of them.
//
// A plan is a mesh and one legal split for every layer. What a rank executes is determined by the
// split of each layer and by the move between each two neighbors. So a set of plans that contains
// every pair of splits of every two neighbors covers everything that any plan executes, and needs
// far fewer plans than all combinations.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "model/graph.h"
#include "model/op_indices.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "tensor/mesh.h"

namespace cadre {

// Every mesh of up to three axes whose sizes are at least 2 and multiply to `ranks`, in every
// order.
std::vector<Mesh> MeshesOf(int ranks);

class PlanSpace {
 public:
  PlanSpace(const Graph& graph, const Mesh& mesh);

  // A plan with uniformly random splits.
  Plan Random(std::mt19937_64& random) const;

  // A plan in which every layer that may be placed is at random coordinates of some random axes,
  // and has random splits over the others.
  Plan RandomPlaced(std::mt19937_64& random) const;

  // At most `max_plans` plans that together contain every pair of splits of every two neighbors.
  std::vector<Plan> CoverPairs(std::mt19937_64& random, size_t max_plans) const;

 private:
  Plan Make(const std::vector<size_t>& choices) const;
  LayerLayouts Place(const GraphLayer& layer, std::mt19937_64& random) const;
  Plan WithBuckets(Plan plan) const;

  const Graph& graph_;
  const Mesh mesh_;
  const ParameterIndex index_;
  // By layer.
  std::vector<std::vector<std::vector<IndexSplit>>> splits_;
};

}  // namespace cadre
