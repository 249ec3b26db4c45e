// All the plans that a graph allows on a number of ranks, and choices among them.
//
// A plan is a mesh and, for every layer, one of its legal splits. What a plan computes is decided
// by each layer's split and by each move between two neighbours, so a set of plans that has every
// pair of splits of every two neighbours reaches every piece of work that any plan can reach; that
// is what "all" means here, where trying the whole product would take longer than the universe has.
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

  // A plan with splits drawn evenly, layer by layer.
  Plan Random(std::mt19937_64& random) const;

  // Plans that between them have every pair of splits of every two neighbours, at most `most`.
  std::vector<Plan> CoverPairs(std::mt19937_64& random, size_t most) const;

  // Plans there are, as a floating-point number because it is large.
  double size() const;

 private:
  Plan Make(const std::vector<size_t>& choices) const;

  const Graph& graph_;
  const Mesh mesh_;
  const ParameterIndex index_;
  // By layer.
  std::vector<std::vector<std::vector<IndexSplit>>> splits_;
};

}  // namespace cadre
