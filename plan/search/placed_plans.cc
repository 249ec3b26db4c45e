// The operators are the layers. An operator takes the seconds of forward and backward for all
// samples of a micro-batch; an edge has the bytes of the layer's output and of its gradient, if
// that is computed. Ranks execute layers in the order of the model. So one schedule stands for both
// passes: the graph of backward is that of forward in the opposite direction, with the same
// critical path if the ratio of backward to forward is the same everywhere. The prediction of the
// plan simulates both passes (placed_prediction.h).
//
// In the search the placer uses list scheduling alone, so that results do not depend on the clock
// and several threads may search. Its local search is limited by kMaxVisits for each number of
// devices: a tenth of a second, for at most three numbers. Most models need less, because the
// longest path of layers and the work of a device bound the step from below, and no more is
// computed if a known plan is at least as fast.
//
// Limits. Updates and gradient sums are not part of the makespan; the prediction contains them. The
// placer lets a device receive all messages while it computes; a rank receives at most one ahead.
// If the placer finds nothing faster than a single device, no plan is offered, although a placement
// on all of them may be faster than every plan that splits layers; a plan that leaves ranks idle is
// not offered either.
#include "plan/search/placed_plans.h"

#include <glog/logging.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plan/cost/collective_cost.h"
#include "plan/cost/communication_cost.h"
#include "plan/cost/group_hybrid.h"
#include "plan/layer_part.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/prediction.h"
#include "plan/tape.h"
#include "proto/cadre/v1/placement.pb.h"

namespace cadre {
namespace {

constexpr char kSwitch[] = "switch";
// Bytes per second of a link that takes no time.
constexpr double kInstant = 1e18;
constexpr int kMaxSimulatedRanks = 8;
constexpr int64_t kMaxVisits = 1'000'000;
// Rounding errors of a sum of times.
constexpr double kShorter = 1 - 1e-9;

Mesh MeshOf(const PlanProblem& problem, int devices) {
  return Mesh({{kDataAxis, problem.ranks / devices}, {kModelAxis, devices}});
}

v1::OperatorGraph OperatorsOf(const PlanProblem& problem, const Mesh& mesh) {
  v1::OperatorGraph operators;
  const Graph& graph = *problem.graph;
  const int64_t samples = LargestPart(LargestMicroBatch(problem), mesh.Size(kDataAxis));
  const int64_t bytes_per_element = problem.bf16_weights ? 2 : kBytesPerWord;
  const std::vector<bool> needs_gradient = LayersWithGradient(graph);
  for (int l = 0; l < graph.size(); ++l) {
    const GraphLayer& layer = graph[l];
    const LayerLayouts whole = LayOutAt(layer, mesh, {.axis = kModelAxis});
    const LayerSeconds seconds =
        problem.hardware.SecondsOf(layer, l, PartOf(whole, mesh, LargestMicroBatch(problem)));
    v1::Operator& op = *operators.add_op();
    op.set_name(layer.name);
    op.set_seconds(seconds.forward + seconds.backward);
    op.set_memory_bytes(LayerBytes(problem, mesh, l, whole));
    std::set<int> inputs = {Graph::kInput};
    for (const int input : layer.inputs) {
      if (!inputs.insert(input).second) continue;
      const int64_t values = needs_gradient[input] ? 2 : 1;
      v1::OperatorEdge& edge = *operators.add_edge();
      edge.set_from(graph[input].name);
      edge.set_to(layer.name);
      edge.set_bytes(values * bytes_per_element * samples * graph[input].output.elements());
    }
  }
  // Every route has two links.
  const LinkProfile& profile = problem.hardware.LinkOf(mesh, {kModelAxis});
  operators.add_switch_(kSwitch);
  for (int d = 0; d < mesh.Size(kModelAxis); ++d) {
    v1::PlacementDevice& device = *operators.add_device();
    device.set_name(absl::StrCat("rank", d));
    device.set_memory_bytes(problem.hardware.memory_bytes);
    v1::PlacementLink& link = *operators.add_link();
    link.set_from(device.name());
    link.set_to(kSwitch);
    link.set_alpha(profile.alpha);
    link.set_bandwidth(profile.beta > 0 ? 2 / profile.beta : kInstant);
  }
  return operators;
}

absl::StatusOr<PlacementProblem> PlacementOf(const PlanProblem& problem, const Mesh& mesh) {
  const v1::OperatorGraph operators = OperatorsOf(problem, mesh);
  // Such a graph is well formed, so its problems are limits that it exceeds: the memory of the
  // devices, or one of the placer, such as kMaxOperators.
  const std::vector<Problem> problems = FindGraphProblems(operators);
  if (!problems.empty()) return absl::ResourceExhaustedError(problems.front().message);
  PlacementProblem placement = PlacementProblemOf(operators);
  placement.in_order = true;
  return placement;
}

Candidate CandidateOf(const PlanProblem& problem, const Mesh& mesh,
                      const OperatorSchedule& schedule) {
  Plan plan{.mesh = mesh};
  for (int l = 0; l < problem.graph->size(); ++l) {
    plan.layers.push_back(LayOutAt((*problem.graph)[l], mesh,
                                   {.axis = kModelAxis, .coordinate = schedule.device[l]}));
  }
  plan = WithBuckets(problem, std::move(plan));
  Prediction prediction = Predict(problem, plan);
  return {std::move(plan), std::move(prediction)};
}

// Whether any placement may be faster than a single device, and its step than `max_seconds`.
bool MayBeFaster(const PlacementProblem& operators, int micro_batches, double max_seconds) {
  double serial = 0;
  for (const PlacementProblem::Operator& op : operators.ops) serial += op.min_seconds;
  const double bound = LowerBound(operators, WindowsOf(operators));
  const double step_bound = std::max(bound, micro_batches * serial / operators.device_count());
  return bound < kShorter * serial && step_bound < kShorter * max_seconds;
}

bool UsesAllDevices(const OperatorSchedule& schedule, int devices) {
  const std::set<int> used(schedule.device.begin(), schedule.device.end());
  return std::ssize(used) == devices;
}

const GraphLayer* SharingLayer(const Graph& graph) {
  const auto found = std::find_if(graph.layers().begin(), graph.layers().end(),
                                  [](const GraphLayer& layer) { return layer.shares_weight; });
  return found == graph.layers().end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<PlacedPlan> PlaceLayersOnRanks(const PlanProblem& problem, int devices,
                                              const PlacerOptions& options) {
  if (const GraphLayer* layer = SharingLayer(*problem.graph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer '", layer->name, "' shares its weight, so it cannot be placed"));
  }
  const Mesh mesh = MeshOf(problem, devices);
  CADRE_ASSIGN_OR_RETURN(const PlacementProblem operators, PlacementOf(problem, mesh));
  CADRE_ASSIGN_OR_RETURN(PlacedGraph placed, PlaceGraph(operators, options));
  return PlacedPlan{.candidate = CandidateOf(problem, mesh, placed.schedule),
                    .placement = std::move(placed)};
}

std::vector<Candidate> PlacedPlans(const PlanProblem& problem, double max_seconds) {
  std::vector<Candidate> plans;
  if (!MayPlaceLayers(problem)) return plans;
  const int64_t limit = problem.hardware.memory_bytes;
  for (const int devices : DivisorsOf(problem.ranks)) {
    if (devices == 1) continue;
    const Mesh mesh = MeshOf(problem, devices);
    const absl::StatusOr<PlacementProblem> operators = PlacementOf(problem, mesh);
    if (!operators.ok() || !MayBeFaster(*operators, problem.micro_batches, max_seconds)) continue;
    const absl::StatusOr<PlacedGraph> placed = PlaceGraph(*operators, {.max_visits = kMaxVisits});
    if (!placed.ok() || !UsesAllDevices(placed->schedule, devices)) continue;
    Candidate plan = CandidateOf(problem, mesh, placed->schedule);
    if (limit == 0 || plan.prediction.memory_bytes <= limit) plans.push_back(std::move(plan));
  }
  return plans;
}

bool MayPlaceLayers(const PlanProblem& problem) {
  return problem.ranks <= kMaxSimulatedRanks && problem.device != v1::Cluster::CUDA &&
         problem.hardware.computes() && SharingLayer(*problem.graph) == nullptr;
}

LayerLayouts LayOutAt(const GraphLayer& layer, const Mesh& mesh, const AxisCoordinate& at) {
  std::vector<IndexSplit> splits;
  if (mesh.Size(kDataAxis) > 1) splits.push_back({"samples", {kDataAxis}});
  absl::StatusOr<LayerLayouts> layouts = LayOut(layer, mesh, std::move(splits), {at});
  CHECK(layouts.ok()) << layouts.status();
  return *std::move(layouts);
}

}  // namespace cadre
