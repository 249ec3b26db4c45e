#include "plan/placed_memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "plan/cost/communication_cost.h"
#include "plan/memory.h"
#include "plan/pipeline.h"

namespace cadre {
namespace {

int64_t LocalElementsOf(const Shape& shape, const Layout& layout, const Mesh& mesh, int rank) {
  return LocalBox(shape, layout, mesh, rank).shape().elements();
}

// The elements of parameters and of the output that a rank holds of a layer.
int64_t ElementsOn(const Plan& plan, const Graph& graph, int l, int64_t samples, int rank) {
  const LayerLayouts& layouts = plan.layers[l];
  int64_t elements =
      LocalElementsOf(BatchShape(samples, graph[l].output), layouts.output, plan.mesh, rank);
  for (size_t p = 0; p < layouts.parameters.size(); ++p) {
    elements +=
        LocalElementsOf(graph[l].parameters[p].shape, layouts.parameters[p], plan.mesh, rank);
  }
  return elements;
}

std::string LargestLayerOn(const Plan& plan, const Graph& graph, int64_t samples, int rank) {
  int largest = 0;
  for (int l = 1; l < graph.size(); ++l) {
    if (ElementsOn(plan, graph, l, samples, rank) >
        ElementsOn(plan, graph, largest, samples, rank)) {
      largest = l;
    }
  }
  return graph[largest].name;
}

}  // namespace

absl::Status CheckPlacedMemory(const v1::RunSpec& spec, const Graph& graph,
                               const ParameterIndex& index, const Plan& plan,
                               v1::Cluster::Device device, std::span<const int64_t> limits) {
  const PassOrder order = PassOrderOf(spec.cluster().pipeline(), MicroBatches(spec), graph, plan);
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    if (limits[rank] <= 0) continue;
    const int64_t needed =
        DeviceBytes(PlannedMemory(spec, graph, index, plan, rank, device,
                                  order.InFlight(StageIn(order, plan.mesh, rank))),
                    device);
    if (needed <= limits[rank]) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("the layers that are placed on rank ", rank, " need ", needed,
                     " bytes of memory; it has ", limits[rank], "; the largest of them is layer '",
                     LargestLayerOn(plan, graph, MicroBatchSamples(spec), rank), "'"));
  }
  return absl::OkStatus();
}

}  // namespace cadre
