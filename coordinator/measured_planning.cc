// If ranks differ, the hardware model of a group has the slowest device, the smallest memory and
// the fewest cores, because a synchronous group runs at the pace of its slowest rank.
//
// Layers or parts of layers that were never timed are estimated from their arithmetic and the speed
// of the timed ones. The estimate is poor for memory-bound layers. It only affects the first plan
// on a new device, because a group times all its layers in its first steps.
//
// Plans are returned without link and buckets: the ranks measure the link after they have connected
// and choose buckets by it (worker/train). Predictions use the measured link.
#include "coordinator/measured_planning.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/status.h"
#include "model/graph.h"
#include "model/layer_placement.h"
#include "model/parameter_index.h"
#include "plan/cluster_profile.h"
#include "plan/layer_part.h"
#include "plan/memory_fit.h"
#include "plan/norm_statistics.h"
#include "plan/placed_memory.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "plan/recomputation.h"
#include "plan/search/hardware_model.h"
#include "plan/search/plan_problem.h"
#include "plan/search/planner.h"
#include "plan/search/prediction.h"
#include "plan/search/search.h"

namespace cadre {
namespace {

// The input of a search, and the objects that it borrows.
struct SearchInput {
  v1::RunSpec spec;
  Graph graph;
  ParameterIndex index;
  PlanProblem problem;
};

// Whether the link was measured and, for every device kind, layer times.
bool IsKnown(const PlanQuery& query) {
  const bool linked = query.ranks.size() == 1 || (query.link.has_value() && query.link->beta() > 0);
  return linked && !query.ranks.empty() && !query.times.empty();
}

// The slowest device kind: it determines the pace of the group.
const v1::LayerTimesRecord& Slowest(const std::vector<v1::LayerTimesRecord>& times) {
  const auto seconds = [](const v1::LayerTimesRecord& record) {
    double sum = 0;
    for (const v1::LayerTime& time : record.times().time()) sum += time.forward() + time.backward();
    return sum / std::max(1, record.times().time_size());
  };
  return *std::max_element(times.begin(), times.end(),
                           [&](const auto& a, const auto& b) { return seconds(a) < seconds(b); });
}

// Floating-point operations per second over all timed layers; used for layers and parts without a
// measurement. 0 if no layer with arithmetic was timed.
double FlopsOf(const v1::ModelTimes& times, const Graph& graph) {
  std::map<absl::string_view, double> flops;
  for (const GraphLayer& layer : graph.layers())
    flops[layer.name] = static_cast<double>(layer.flops);
  double work = 0;
  double seconds = 0;
  for (const v1::LayerTime& time : times.time()) {
    const auto layer = flops.find(time.layer());
    if (layer == flops.end() || layer->second <= 0) continue;
    // The backward pass has twice the arithmetic of the forward pass.
    work += 3 * layer->second * KeyOf(time).part.work();
    seconds += time.forward() + time.backward();
  }
  return seconds > 0 ? work / seconds : 0;
}

bool HasArithmetic(const Graph& graph) {
  return std::any_of(graph.layers().begin(), graph.layers().end(),
                     [](const GraphLayer& layer) { return layer.flops > 0; });
}

// Number of ranks on each host; 1 if hosts have different numbers of ranks.
int PerHost(const std::vector<RankResources>& ranks) {
  std::map<std::string, int> hosts;
  for (const RankResources& rank : ranks) ++hosts[rank.host];
  const int first = hosts.begin()->second;
  const bool alike = std::all_of(hosts.begin(), hosts.end(),
                                 [&](const auto& host) { return host.second == first; });
  return alike ? first : 1;
}

// The minimum over ranks with a known value; 0 if none.
template <typename Value>
Value MinKnown(const std::vector<RankResources>& ranks, Value RankResources::*value) {
  Value min = 0;
  for (const RankResources& rank : ranks) {
    if (rank.*value > 0 && (min == 0 || rank.*value < min)) min = rank.*value;
  }
  return min;
}

absl::StatusOr<HardwareModel> HardwareFor(const PlanQuery& query, const Graph& graph) {
  HardwareModel machine;
  if (query.link.has_value()) {
    CADRE_ASSIGN_OR_RETURN(machine.link, LinkProfileFromProto(*query.link));
    machine.link_kind = query.link->kind();
  }
  machine.inside = machine.link;
  if (query.inside.has_value()) {
    CADRE_ASSIGN_OR_RETURN(machine.inside, LinkProfileFromProto(*query.inside));
  }
  machine.per_host = PerHost(query.ranks);
  machine.cores = machine.per_host * MinKnown(query.ranks, &RankResources::cores);
  machine.memory_bytes = MinKnown(query.ranks, &RankResources::memory_bytes);
  const v1::LayerTimesRecord& slowest = Slowest(query.times);
  machine.times = MeasuredLayers(slowest.times(), graph);
  machine.flops = FlopsOf(slowest.times(), graph);
  if (machine.flops <= 0 && HasArithmetic(graph)) {
    return absl::FailedPreconditionError("no layer with arithmetic has been timed");
  }
  machine.update_seconds = slowest.update_seconds();
  machine.copy_seconds = slowest.copy_seconds();
  return machine;
}

// Requires: `input` is not moved while its problem is used.
absl::Status FillSearchInput(const PlanQuery& query, SearchInput& input) {
  const int ranks = std::ssize(query.ranks);
  input.spec = query.spec;
  CADRE_ASSIGN_OR_RETURN(input.graph, Graph::FromModel(input.spec.model()));
  input.index = ParameterIndex::FromGraph(input.graph);
  CADRE_ASSIGN_OR_RETURN(HardwareModel machine, HardwareFor(query, input.graph));
  CADRE_ASSIGN_OR_RETURN(
      input.problem, ProblemOf(input.spec, input.graph, input.index, ranks, std::move(machine)));
  return absl::OkStatus();
}

// The plan as it is assigned to a group, without link and buckets: the ranks measure the link and
// choose buckets by it.
Plan WithoutLink(const SearchInput& input, Plan plan) {
  return WithCollectives(std::move(plan), input.graph, input.index,
                         input.spec.cluster().collectives(), LinkProfile(),
                         v1::LinkProfile::KIND_UNSPECIFIED);
}

std::vector<int64_t> LimitsOf(const PlanQuery& query) {
  std::vector<int64_t> limits;
  for (const RankResources& rank : query.ranks) limits.push_back(rank.memory_bytes);
  return limits;
}

absl::Status CheckMemory(const PlanQuery& query, const Graph& graph, const ParameterIndex& index,
                         const Plan& plan) {
  return CheckPlacedMemory(query.spec, graph, index, plan, query.spec.cluster().device(),
                           LimitsOf(query));
}

absl::Status CheckMemory(const PlanQuery& query, const v1::Plan& proto) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(query.spec.model()));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  CADRE_ASSIGN_OR_RETURN(const Plan plan, PlanFromProto(proto, graph, index));
  return CheckMemory(query, graph, index, plan);
}

// Under AUTO, the plan of the rules recomputes as few blocks as the memory of the ranks requires;
// in groups of more than kMaxExactRanks, only the search knows whether it is required.
absl::StatusOr<v1::Plan> FitIntoMemory(const PlanQuery& query, v1::Plan by_rules) {
  const v1::Recomputation::Choice choice = query.spec.cluster().recompute();
  const bool automatic =
      choice == v1::Recomputation::CHOICE_UNSPECIFIED || choice == v1::Recomputation::AUTO;
  const bool known = MinKnown(query.ranks, &RankResources::memory_bytes) > 0;
  if (!automatic || !known || std::ssize(query.ranks) > kMaxExactRanks) return by_rules;
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(query.spec.model()));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  CADRE_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(by_rules, graph, index));
  RecomputeAsNeeded(query.spec, graph, index, query.spec.cluster().device(), LimitsOf(query),
                    RecomputationBlocks(graph), plan);
  return PlanToProto(plan, index);
}

absl::StatusOr<std::vector<GroupPlan>> SearchPlans(const PlanQuery& query) {
  SearchInput input;
  CADRE_RETURN_IF_ERROR(FillSearchInput(query, input));
  CADRE_ASSIGN_OR_RETURN(SearchResult result, Search(input.problem));
  std::vector<GroupPlan> plans;
  const auto add = [&](Candidate candidate) {
    const Plan plan = WithoutLink(input, std::move(candidate.plan));
    if (!CheckNormStatistics(query.spec, input.graph, plan).ok()) return;
    // The search estimates the memory of placed layers by layer, not from the tapes.
    if (PlacesLayers(plan) && !CheckMemory(query, input.graph, input.index, plan).ok()) return;
    plans.push_back({.plan = PlanToProto(plan, input.index),
                     .predicted = std::move(candidate.prediction.times)});
  };
  add(std::move(result.best));
  for (Candidate& other : result.others) add(std::move(other));
  if (plans.empty()) {
    return absl::ResourceExhaustedError(
        "no plan fits into memory and has statistics of more than one value");
  }
  return plans;
}

}  // namespace

absl::StatusOr<std::vector<GroupPlan>> MeasuredPlanning::PlansFor(const PlanQuery& query) const {
  CADRE_ASSIGN_OR_RETURN(v1::Plan by_rules, MakePlan(query.spec, std::ssize(query.ranks)));
  if (PlacesLayers(query.spec.cluster())) {
    // The search does not compare plans whose layers are placed by pins.
    CADRE_ASSIGN_OR_RETURN(by_rules, FitIntoMemory(query, std::move(by_rules)));
    CADRE_RETURN_IF_ERROR(CheckMemory(query, by_rules));
    return std::vector<GroupPlan>{{.plan = std::move(by_rules)}};
  }
  if (IsKnown(query)) {
    absl::StatusOr<std::vector<GroupPlan>> found = SearchPlans(query);
    if (found.ok()) return found;
    LOG(WARNING) << "run '" << query.spec.name() << "', " << query.ranks.size()
                 << " ranks: using the plan of the rules because the search failed: "
                 << found.status();
  }
  CADRE_ASSIGN_OR_RETURN(by_rules, FitIntoMemory(query, std::move(by_rules)));
  return std::vector<GroupPlan>{{.plan = std::move(by_rules)}};
}

absl::StatusOr<v1::StepTimes> MeasuredPlanning::Predict(const PlanQuery& query,
                                                        const v1::Plan& proto) const {
  if (!IsKnown(query)) {
    return absl::FailedPreconditionError("the link or layer times have not been measured");
  }
  SearchInput input;
  CADRE_RETURN_IF_ERROR(FillSearchInput(query, input));
  CADRE_ASSIGN_OR_RETURN(const Plan plan, PlanFromProto(proto, input.graph, input.index));
  if (plan.mesh.ranks() != input.problem.ranks) {
    return absl::InvalidArgumentError("the plan is for another number of ranks");
  }
  return cadre::Predict(input.problem, plan).times;
}

std::string MeasuredPlanning::KeyOf(const v1::Model& model) const { return ModelKey(model); }

std::vector<std::string> MeasuredPlanning::LayersOf(const v1::Model& model) const {
  std::vector<std::string> names;
  const absl::StatusOr<Graph> graph = Graph::FromModel(model);
  if (!graph.ok()) return names;
  for (const GraphLayer& layer : graph->layers()) names.push_back(layer.name);
  return names;
}

}  // namespace cadre
