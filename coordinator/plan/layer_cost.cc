#include "coordinator/plan/layer_cost.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cost/communication_cost.h"
#include "coordinator/plan/move_words.h"
#include "coordinator/plan/prediction.h"
#include "spec/layer_part.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

std::vector<Algorithm> Allowed(v1::CollectivePolicy policy, const GraphLayer& layer, bool native) {
  switch (policy) {
    case v1::RING:
      return {Algorithm::kRing};
    case v1::BUTTERFLY:
      return {Algorithm::kButterfly};
    case v1::HALVING_DOUBLING:
      return {Algorithm::kHalvingDoubling};
    case v1::NATIVE:
      return {Algorithm::kNative};
    case v1::PAPER: {
      const bool convolutional =
          layer.kind == LayerKind::kConvolution || layer.kind == LayerKind::kBatchNorm;
      return {convolutional ? Algorithm::kButterfly : Algorithm::kRing};
    }
    default:
      if (!native) return {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kButterfly};
      return {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kButterfly,
              Algorithm::kNative};
  }
}

// Elements of parameter p on the rank that has most.
int64_t LocalElements(const LayerParameter& parameter, const Layout& layout, const Mesh& mesh) {
  int64_t elements = 1;
  for (int d = 0; d < parameter.shape.rank(); ++d) {
    elements *= LargestPart(parameter.shape[d], mesh.Size(layout.axes(d)));
  }
  return elements;
}

}  // namespace

double CollectiveSeconds(v1::CollectivePolicy policy, const GraphLayer& layer, int64_t elements,
                         int sum, int own, const LinkProfile& reducing,
                         const LinkProfile& gathering) {
  const int64_t chunks = std::max<int64_t>(1, LargestPart(elements, kChunkElements));
  const int64_t bytes = kBytesPerWord * elements / chunks;
  double least = std::numeric_limits<double>::infinity();
  const bool native = reducing.native() && gathering.native();
  for (const Algorithm algorithm : Allowed(policy, layer, native)) {
    least =
        std::min(least, SecondsOf(Collective::kReduceScatter, algorithm, sum, bytes, reducing) +
                            SecondsOf(Collective::kAllGather, algorithm, own, bytes, gathering));
  }
  return static_cast<double>(chunks) * least;
}

LayerCost CostOfLayer(const PlanProblem& problem, const Mesh& mesh, int layer,
                      const LayerLayouts& layouts) {
  const GraphLayer& of = (*problem.graph)[layer];
  const GroupMachine& machine = problem.machine;
  LayerCost cost;
  const LayerSeconds seconds =
      machine.SecondsOf(of, layer, PartOf(layouts, mesh, SamplesAtOnce(problem)));
  cost.compute = (seconds.forward + seconds.backward) * problem.micro_batches;
  // Parameters that are reduced and owned by the same ranks go together.
  std::map<std::pair<Axes, Axes>, int64_t> elements;
  for (size_t p = 0; p < of.parameters.size(); ++p) {
    elements[{layouts.gradient_sums[p], SameAxes(layouts, static_cast<int>(p), mesh)}] +=
        LocalElements(of.parameters[p], layouts.parameters[p], mesh);
  }
  for (const auto& [axes, count] : elements) {
    Axes owners = axes.first;
    owners.insert(owners.end(), axes.second.begin(), axes.second.end());
    const int own = mesh.Size(owners);
    cost.collective +=
        CollectiveSeconds(problem.collectives, of, count, mesh.Size(axes.first), own,
                          machine.LinkOf(mesh, axes.first), machine.LinkOf(mesh, owners));
    cost.update += machine.update_seconds * static_cast<double>(LargestPart(count, own));
  }
  return cost;
}

double PlanCost(const PlanProblem& problem, const Plan& plan, double weight) {
  double sum = 0;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    sum += CostOfLayer(problem, plan.mesh, static_cast<int>(l), plan.layers[l]).sum(weight);
  }
  for (const LayerMoves& moves : MovesOf(problem, plan)) {
    sum += problem.micro_batches * (moves.forward.seconds + moves.backward.seconds);
  }
  return sum;
}

int64_t PlanBytes(const PlanProblem& problem, const Plan& plan) {
  int64_t bytes = 0;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    bytes += LayerBytes(problem, plan.mesh, static_cast<int>(l), plan.layers[l]);
  }
  return bytes;
}

}  // namespace cadre
