#include "coordinator/measured_planning.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/status.h"
#include "coordinator/plan/machine.h"
#include "coordinator/plan/plan_problem.h"
#include "coordinator/plan/planner.h"
#include "coordinator/plan/prediction.h"
#include "coordinator/plan/search.h"
#include "spec/cluster_profile.h"
#include "spec/graph.h"
#include "spec/layer_part.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

// What a problem borrows, beside it.
struct Posed {
  v1::RunSpec spec;
  Graph graph;
  ParameterIndex index;
  PlanProblem problem;
};

// The link and, of every kind of device, some time of a layer.
bool IsKnown(const PlanningQuestion& question) {
  const bool linked =
      question.ranks.size() == 1 || (question.link.has_value() && question.link->beta() > 0);
  return linked && !question.ranks.empty() && !question.times.empty();
}

// The slowest of the devices: the group goes at its pace.
const v1::LayerTimesRecord& Slowest(const std::vector<v1::LayerTimesRecord>& times) {
  const auto seconds = [](const v1::LayerTimesRecord& record) {
    double sum = 0;
    for (const v1::LayerTime& time : record.times().time()) sum += time.forward() + time.backward();
    return sum / std::max(1, record.times().time_size());
  };
  return *std::max_element(times.begin(), times.end(),
                           [&](const auto& a, const auto& b) { return seconds(a) < seconds(b); });
}

// Floating-point operations a second over all that was timed: how the layers (or the parts of them)
// that rank 0 has nothing of are reckoned. 0: no layer with arithmetic was timed.
double FlopsOf(const v1::ModelTimes& times, const Graph& graph) {
  std::map<absl::string_view, double> flops;
  for (const GraphLayer& layer : graph.layers())
    flops[layer.name] = static_cast<double>(layer.flops);
  double work = 0;
  double seconds = 0;
  for (const v1::LayerTime& time : times.time()) {
    const auto layer = flops.find(time.layer());
    if (layer == flops.end() || layer->second <= 0) continue;
    // Backward takes two forwards.
    work += 3 * layer->second * KeyOf(time).part.work();
    seconds += time.forward() + time.backward();
  }
  return seconds > 0 ? work / seconds : 0;
}

bool HasArithmetic(const Graph& graph) {
  return std::any_of(graph.layers().begin(), graph.layers().end(),
                     [](const GraphLayer& layer) { return layer.flops > 0; });
}

// Ranks on each host; 1 where hosts have different numbers of them.
int PerHost(const std::vector<RankMachine>& ranks) {
  std::map<std::string, int> hosts;
  for (const RankMachine& rank : ranks) ++hosts[rank.host];
  const int first = hosts.begin()->second;
  const bool alike = std::all_of(hosts.begin(), hosts.end(),
                                 [&](const auto& host) { return host.second == first; });
  return alike ? first : 1;
}

// The least that is known of any rank; 0: of none.
template <typename Value>
Value Least(const std::vector<RankMachine>& ranks, Value RankMachine::*value) {
  Value least = 0;
  for (const RankMachine& rank : ranks) {
    if (rank.*value > 0 && (least == 0 || rank.*value < least)) least = rank.*value;
  }
  return least;
}

absl::StatusOr<GroupMachine> MachineFor(const PlanningQuestion& question, const Graph& graph) {
  GroupMachine machine;
  if (question.link.has_value()) {
    CADRE_ASSIGN_OR_RETURN(machine.link, LinkProfileFromProto(*question.link));
    machine.link_kind = question.link->kind();
  }
  machine.inside = machine.link;
  if (question.inside.has_value()) {
    CADRE_ASSIGN_OR_RETURN(machine.inside, LinkProfileFromProto(*question.inside));
  }
  machine.per_host = PerHost(question.ranks);
  machine.cores = machine.per_host * Least(question.ranks, &RankMachine::cores);
  machine.memory_bytes = Least(question.ranks, &RankMachine::memory_bytes);
  const v1::LayerTimesRecord& slowest = Slowest(question.times);
  machine.times = MeasuredLayers(slowest.times(), graph);
  machine.flops = FlopsOf(slowest.times(), graph);
  if (machine.flops <= 0 && HasArithmetic(graph)) {
    return absl::FailedPreconditionError("no layer with arithmetic was ever timed");
  }
  machine.update_seconds = slowest.update_seconds();
  machine.copy_seconds = slowest.copy_seconds();
  return machine;
}

// Requires: `posed` stays where it is as long as its problem is used.
absl::Status Pose(const PlanningQuestion& question, Posed& posed) {
  const int ranks = static_cast<int>(question.ranks.size());
  posed.spec = *question.spec;
  CADRE_ASSIGN_OR_RETURN(posed.graph, Graph::FromModel(posed.spec.model()));
  posed.index = ParameterIndex::FromGraph(posed.graph);
  CADRE_ASSIGN_OR_RETURN(GroupMachine machine, MachineFor(question, posed.graph));
  CADRE_ASSIGN_OR_RETURN(
      posed.problem, ProblemOf(posed.spec, posed.graph, posed.index, ranks, std::move(machine)));
  return absl::OkStatus();
}

// As it is given to a group: the ranks measure the link, and choose buckets by it.
v1::Plan Unmeasured(const Posed& posed, Plan plan) {
  plan = WithCollectives(std::move(plan), posed.graph, posed.index,
                         posed.spec.cluster().collectives(), LinkProfile(), "");
  return PlanToProto(plan, posed.index);
}

absl::StatusOr<std::vector<GroupPlan>> Found(const PlanningQuestion& question) {
  Posed posed;
  CADRE_RETURN_IF_ERROR(Pose(question, posed));
  CADRE_ASSIGN_OR_RETURN(SearchResult result, Search(posed.problem));
  std::vector<GroupPlan> plans;
  plans.push_back({.plan = Unmeasured(posed, std::move(result.best.plan)),
                   .predicted = std::move(result.best.prediction.times)});
  for (Candidate& other : result.others) {
    plans.push_back({.plan = Unmeasured(posed, std::move(other.plan)),
                     .predicted = std::move(other.prediction.times)});
  }
  return plans;
}

}  // namespace

absl::StatusOr<std::vector<GroupPlan>> MeasuredPlanning::PlansFor(
    const PlanningQuestion& question) const {
  CADRE_ASSIGN_OR_RETURN(v1::Plan by_rules,
                         MakePlan(*question.spec, static_cast<int>(question.ranks.size())));
  if (IsKnown(question)) {
    absl::StatusOr<std::vector<GroupPlan>> found = Found(question);
    if (found.ok()) return found;
    LOG(WARNING) << "run '" << question.spec->name() << "', " << question.ranks.size()
                 << " ranks: planned by the rules, as the search found nothing: " << found.status();
  }
  return std::vector<GroupPlan>{{.plan = std::move(by_rules)}};
}

absl::StatusOr<v1::StepTimes> MeasuredPlanning::Predict(const PlanningQuestion& question,
                                                        const v1::Plan& proto) const {
  if (!IsKnown(question)) {
    return absl::FailedPreconditionError("link or times of layers were never measured");
  }
  Posed posed;
  CADRE_RETURN_IF_ERROR(Pose(question, posed));
  CADRE_ASSIGN_OR_RETURN(const Plan plan, PlanFromProto(proto, posed.graph, posed.index));
  if (plan.mesh.ranks() != posed.problem.ranks) {
    return absl::InvalidArgumentError("the plan is for another number of ranks");
  }
  return cadre::Predict(posed.problem, plan).times;
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
