// Part of search.h: the meshes that are considered.
#include <algorithm>
#include <utility>

#include "plan/cost/collective_cost.h"
#include "plan/cost/communication_cost.h"
#include "plan/cost/group_hybrid.h"
#include "plan/cost/network_shape.h"
#include "plan/search/search.h"

namespace cadre {
namespace {

Mesh MeshWith(int data, int space, int model) {
  std::vector<Mesh::Axis> axes = {{kDataAxis, data}};
  if (space > 1) axes.push_back({kSpaceAxis, space});
  axes.push_back({kModelAxis, model});
  return Mesh(std::move(axes));
}

// Beyond so many meshes, only those are considered whose axes can be used: at most as many parts of
// rows, outputs and samples as there are rows, outputs of the widest layer, and samples.
constexpr size_t kManyFactorizations = 300;

bool CanBeUsed(const PlanProblem& problem, const Mesh& mesh) {
  int64_t rows = 1;
  int64_t widest = 1;
  for (const GraphLayer& layer : problem.graph->layers()) {
    if (layer.input().rank() == 3) rows = std::max(rows, layer.input()[0]);
    for (const LayerParameter& parameter : layer.parameters) {
      for (const int64_t extent : parameter.shape.dims()) widest = std::max(widest, extent);
    }
  }
  return mesh.Size(kSpaceAxis) <= rows && mesh.Size(kModelAxis) <= widest &&
         mesh.Size(kDataAxis) <= problem.batch;
}

// The group size of the closed form of group hybrid parallelism.
int HybridGroup(const PlanProblem& problem) {
  const NetworkShape network = NetworkShapeOf(*problem.graph);
  const LinkProfile& link = problem.hardware.link;
  HybridProblem hybrid{.network = &network, .workers = problem.ranks};
  hybrid.batch = problem.batch;
  hybrid.link = {link.alpha, kBytesPerWord * link.beta};
  const absl::StatusOr<int64_t> group = ChooseGroup(hybrid);
  return group.ok() ? *group : 1;
}

std::vector<Mesh> AllMeshes(const PlanProblem& problem) {
  const bool images = problem.graph->input().rank() == 3;
  std::vector<Mesh> meshes;
  for (const int data : DivisorsOf(problem.ranks)) {
    for (const int space : DivisorsOf(problem.ranks / data)) {
      if (space == 1 || images) {
        meshes.push_back(MeshWith(data, space, problem.ranks / data / space));
      }
    }
  }
  if (meshes.size() <= kManyFactorizations) return meshes;
  std::vector<Mesh> used;
  for (Mesh& mesh : meshes) {
    if (CanBeUsed(problem, mesh)) used.push_back(mesh);
  }
  return used.empty() ? meshes : used;
}

std::vector<Mesh> MeshesOfStrategy(const PlanProblem& problem) {
  const int ranks = problem.ranks;
  switch (problem.strategy) {
    case Strategy::kBatch:
      return {MeshWith(ranks, 1, 1)};
    case Strategy::kModel:
      return {MeshWith(1, 1, ranks)};
    case Strategy::kGroupHybrid: {
      const int group = HybridGroup(problem);
      return {MeshWith(ranks / group, 1, group)};
    }
    case Strategy::kUniformGrid:
    case Strategy::kConvBatchFcGrid:
    case Strategy::kConvDomainFcGrid: {
      std::vector<Mesh> grids;
      for (const int data : DivisorsOf(ranks)) grids.push_back(MeshWith(data, 1, ranks / data));
      return grids;
    }
    case Strategy::kAuto:
      return AllMeshes(problem);
  }
  return {};
}

bool MatchesPins(const std::vector<Mesh::Axis>& pinned, const Mesh& mesh) {
  return std::all_of(pinned.begin(), pinned.end(),
                     [&](const Mesh::Axis& axis) { return mesh.Size(axis.name) == axis.size; });
}

}  // namespace

std::vector<Mesh> MeshesFor(const PlanProblem& problem) {
  const std::vector<Mesh::Axis>& pinned = problem.pins.mesh;
  const Mesh given(pinned);
  if (!pinned.empty() && given.ranks() == problem.ranks) return {given};
  // A layer that is pinned to an index other than samples needs an axis for it.
  const bool needs_axis =
      problem.ranks > 1 && std::any_of(problem.pins.layers.begin(), problem.pins.layers.end(),
                                       [](const auto& pin) { return pin.second != "samples"; });
  std::vector<Mesh> meshes = pinned.empty() ? MeshesOfStrategy(problem) : AllMeshes(problem);
  meshes.erase(std::remove_if(meshes.begin(), meshes.end(),
                              [&](const Mesh& mesh) {
                                return !MatchesPins(pinned, mesh) ||
                                       (needs_axis && mesh.Size(kDataAxis) == problem.ranks);
                              }),
               meshes.end());
  return meshes;
}

}  // namespace cadre
