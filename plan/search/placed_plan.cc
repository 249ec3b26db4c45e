// The operators are the layers. An operator takes the seconds of forward and backward for all
// samples of a micro-batch; an edge has the bytes of the layer's output and of its gradient. So one
// schedule stands for both passes: the graph of backward is that of forward in the opposite
// direction, with the same critical path if the ratio of backward to forward is the same
// everywhere. The prediction of the plan simulates both passes (placed_prediction.h).
//
// Limits. A rank executes its layers in the order of the model, which need not be that of the
// schedule. Memory is that of the prediction; the placer does not limit it.
#include "plan/search/placed_plan.h"

#include <glog/logging.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plan/layer_part.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/prediction.h"
#include "proto/cadre/v1/placement.pb.h"

namespace cadre {
namespace {

constexpr char kSwitch[] = "switch";
// Bytes per second of a link that takes no time.
constexpr double kInstant = 1e18;

v1::OperatorGraph OperatorsOf(const PlanProblem& problem) {
  v1::OperatorGraph operators;
  const Graph& graph = *problem.graph;
  const Mesh mesh({{kModelAxis, problem.ranks}});
  const int64_t samples = LargestMicroBatch(problem);
  const int64_t bytes_per_element = problem.bf16_weights ? 2 : kBytesPerWord;
  for (int l = 0; l < graph.size(); ++l) {
    const GraphLayer& layer = graph[l];
    const absl::StatusOr<LayerLayouts> whole = LayOut(layer, mesh, {}, {{kModelAxis, 0}});
    CHECK(whole.ok()) << whole.status();
    const LayerSeconds seconds =
        problem.hardware.SecondsOf(layer, l, PartOf(*whole, mesh, samples));
    v1::Operator& op = *operators.add_op();
    op.set_name(layer.name);
    op.set_seconds(seconds.forward + seconds.backward);
    for (const int input : std::set<int>(layer.inputs.begin(), layer.inputs.end())) {
      if (input == Graph::kInput) continue;
      v1::OperatorEdge& edge = *operators.add_edge();
      edge.set_from(graph[input].name);
      edge.set_to(layer.name);
      edge.set_bytes(2 * bytes_per_element * samples * graph[input].output.elements());
    }
  }
  // Every route has two links.
  const LinkProfile& link = problem.hardware.LinkOf(mesh, {kModelAxis});
  operators.add_switch_(kSwitch);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    v1::PlacementDevice& device = *operators.add_device();
    device.set_name(absl::StrCat("rank", rank));
    v1::PlacementLink& half = *operators.add_link();
    half.set_from(device.name());
    half.set_to(kSwitch);
    half.set_alpha(link.alpha);
    half.set_bandwidth(link.beta > 0 ? 2 / link.beta : kInstant);
  }
  return operators;
}

}  // namespace

absl::StatusOr<PlacedPlan> PlaceLayersOnRanks(const PlanProblem& problem,
                                              const PlacerOptions& options) {
  const Graph& graph = *problem.graph;
  for (const GraphLayer& layer : graph.layers()) {
    if (!layer.shares_weight) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("layer '", layer.name, "' shares its weight, so it cannot be placed"));
  }
  CADRE_ASSIGN_OR_RETURN(PlacedGraph placed,
                         PlaceGraph(PlacementProblemOf(OperatorsOf(problem)), options));
  Plan plan{.mesh = Mesh({{kModelAxis, problem.ranks}})};
  for (int l = 0; l < graph.size(); ++l) {
    CADRE_ASSIGN_OR_RETURN(LayerLayouts layouts,
                           LayOut(graph[l], plan.mesh, {},
                                  {{.axis = kModelAxis, .coordinate = placed.schedule.device[l]}}));
    plan.layers.push_back(std::move(layouts));
  }
  plan = WithBuckets(problem, std::move(plan));
  Prediction prediction = Predict(problem, plan);
  return PlacedPlan{.candidate = {std::move(plan), std::move(prediction)},
                    .placement = std::move(placed)};
}

}  // namespace cadre
