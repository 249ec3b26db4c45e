// Compares predicted with measured step times. A plan divides a model's layers among the ranks. For
// each model, the plans of all strategies of the papers and the planner's own plan are predicted
// from a short measurement of layers and links, and then run; with --micro_batches, also a pipeline
// for each number of stages; with --placed, also the plan that places each layer on one rank.
//
// There is a line for each plan, with the predicted and measured parts of the step, and one for
// each model with the planner's choice and the fastest plan.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/harness.h"
#include "bench/step/step.h"
#include "bench/training.h"
#include "comm/link_probe.h"
#include "lab/placement_program.h"
#include "member/agreement.h"
#include "plan/cost/group_hybrid.h"
#include "plan/search/placed_plans.h"
#include "plan/search/planner.h"
#include "plan/search/prediction.h"
#include "plan/search/search.h"
#include "plan/search/staged_plans.h"
#include "worker/probe/layer_probe.h"

DECLARE_string(models);
DECLARE_string(strategies);
DECLARE_bool(placed);
DECLARE_double(cores);
DECLARE_double(seconds);
DECLARE_string(link);

namespace cadre {
namespace {

// One plan with its predicted and measured step times.
struct Entry {
  std::string strategy;
  v1::Plan plan;
  v1::StepTimes predicted;
  v1::StepTimes measured;

  double error() const { return predicted.step() / measured.step() - 1; }
};

std::string MeshText(const v1::Plan& plan) {
  return absl::StrJoin(plan.mesh(), " ", [](std::string* out, const v1::MeshAxis& axis) {
    absl::StrAppend(out, axis.name(), "=", axis.size());
  });
}

// Whether --strategies contains the strategy.
bool IsSelected(absl::string_view strategy) {
  const std::vector<absl::string_view> names =
      absl::StrSplit(FLAGS_strategies, ',', absl::SkipEmpty());
  return names.empty() || std::ranges::count(names, strategy) > 0;
}

bool PlacesLayers(const v1::Plan& plan) {
  return std::ranges::any_of(plan.layers(),
                             [](const v1::LayerPlan& layer) { return layer.at_size() > 0; });
}

// The parts of a step that the rank's own thread executes or waits for: computation, moves of
// activations between ranks, and exposed communication. Others cannot be measured from outside.
nlohmann::ordered_json OwnThread(const v1::StepTimes& times) {
  return {{"step_ms", Rounded(times.step() * 1e3, 3)},
          {"compute_ms", Rounded(times.compute() * 1e3, 3)},
          {"moves_ms", Rounded(times.moves() * 1e3, 3)},
          {"exposed_ms", Rounded(times.exposed() * 1e3, 3)}};
}

nlohmann::ordered_json Predicted(const v1::StepTimes& times) {
  nlohmann::ordered_json json = OwnThread(times);
  json["collectives_ms"] = Rounded(times.collectives() * 1e3, 3);
  json["update_ms"] = Rounded(times.update() * 1e3, 3);
  return json;
}

// The plans of one model: their choice, prediction and measurement.
class ModelPlans {
 public:
  ModelPlans(std::string model, v1::RunSpec spec, Graph graph, const StepGroup& group,
             const LinkProfile& link)
      : model_(std::move(model)),
        spec_(std::move(spec)),
        graph_(std::move(graph)),
        index_(ParameterIndex::FromGraph(graph_)),
        group_(group) {
    hardware_.link = link;
    hardware_.cores = FLAGS_cores;
  }

  absl::Status Run() {
    CADRE_RETURN_IF_ERROR(ChooseStrategies());
    CADRE_RETURN_IF_ERROR(Probe());
    CADRE_RETURN_IF_ERROR(ChooseBest());
    for (Entry& entry : entries_) {
      CADRE_RETURN_IF_ERROR(Measure(&entry));
      if (group_.lead()) Print(entry);
    }
    if (group_.lead()) PrintPick();
    return absl::OkStatus();
  }

 private:
  // Replaces the plans of all ranks by the plans of rank 0.
  absl::Status Share() {
    for (Entry& entry : entries_) {
      CADRE_ASSIGN_OR_RETURN(const std::string bytes,
                             BroadcastText(entry.plan.SerializeAsString(), group_.communicator));
      if (!entry.plan.ParseFromString(bytes)) return absl::InternalError("plan of rank 0");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PlanProblem> ProblemFor(Strategy strategy) const {
    CADRE_ASSIGN_OR_RETURN(PlanProblem problem,
                           ProblemOf(spec_, graph_, index_, group_.transport.size(), hardware_));
    problem.strategy = strategy;
    return problem;
  }

  // Plans of smaller groups that time all layers for the samples of one rank of a stage, or of the
  // only rank that has a layer.
  std::vector<v1::Plan> PlansOfStages() const {
    std::vector<v1::Plan> plans;
    for (const int ranks : DivisorsOf(group_.transport.size())) {
      v1::RunSpec smaller = spec_;
      smaller.mutable_cluster()->set_model_ranks(1);
      smaller.mutable_cluster()->set_ranks_per_group(ranks);
      const absl::StatusOr<v1::Plan> plan = MakePlan(smaller, ranks);
      if (plan.ok() && ranks < group_.transport.size()) plans.push_back(*plan);
    }
    return plans;
  }

  // Adds the plans of every strategy on every mesh it allows, without duplicates.
  absl::Status ChooseStrategies() {
    for (const Strategy strategy : AllStrategies()) {
      if (strategy == Strategy::kAuto || strategy == Strategy::kGroupHybrid) continue;
      if (!IsSelected(StrategyName(strategy))) continue;
      CADRE_ASSIGN_OR_RETURN(PlanProblem problem, ProblemFor(strategy));
      for (const Mesh& mesh : MeshesFor(problem)) {
        problem.pins.mesh = mesh.axes();
        const auto found = Search(problem);
        if (found.ok()) AddIfNew(std::string(StrategyName(strategy)), found->best.plan);
      }
    }
    return Share();
  }

  // Two strategies may lead to the same plan; plans are compared by their serialized form.
  void AddIfNew(const std::string& strategy, const Plan& plan) {
    v1::Plan proto = PlanToProto(plan, index_);
    const auto same = [&](const Entry& entry) {
      return entry.plan.SerializeAsString() == proto.SerializeAsString();
    };
    if (std::ranges::any_of(entries_, same)) return;
    entries_.push_back({.strategy = strategy, .plan = std::move(proto)});
  }

  // All ranks measure simultaneously, as they compute during training.
  absl::Status Probe() {
    v1::ProbeRequest request;
    *request.mutable_spec() = spec_;
    for (const Entry& entry : entries_) {
      if (!PlacesLayers(entry.plan)) *request.add_plan() = entry.plan;
    }
    for (v1::Plan& plan : PlansOfStages()) *request.add_plan() = std::move(plan);
    const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
    CADRE_ASSIGN_OR_RETURN(const v1::DeviceProfile device,
                           ProbeLayers(request, *kernels, {.before_each_plan = [this] {
                                         return group_.communicator.Barrier();
                                       }}));
    hardware_.flops = device.flops();
    hardware_.update_seconds = device.update_seconds();
    hardware_.copy_seconds = device.copy_seconds();
    for (const v1::ModelTimes& times : device.model()) {
      hardware_.times = MeasuredLayers(times, graph_);
    }
    return absl::OkStatus();
  }

  // Adds the plan of the free search. It may split layers in ways that no other plan does, so
  // layers are probed again before anything is predicted.
  absl::Status ChooseBest() {
    CADRE_ASSIGN_OR_RETURN(PlanProblem problem, ProblemFor(Strategy::kAuto));
    // The measurements of the ranks differ slightly and might lead to different plans.
    if (group_.lead()) {
      if (IsSelected("auto")) {
        CADRE_ASSIGN_OR_RETURN(const SearchResult found, Search(problem));
        AddIfNew("auto", found.best.plan);
      }
      for (const Candidate& staged : StagedPlans(problem)) AddIfNew("stages", staged.plan);
      if (FLAGS_placed && problem.ranks > 1) {
        const PlacementProgram program;
        CADRE_ASSIGN_OR_RETURN(const PlacedPlan placed,
                               PlaceLayersOnRanks(problem, problem.ranks, {.solver = &program}));
        AddIfNew("placed", placed.candidate.plan);
      }
    }
    auto plans = static_cast<uint32_t>(entries_.size());
    CADRE_RETURN_IF_ERROR(
        group_.communicator.Broadcast(std::as_writable_bytes(std::span(&plans, 1)), 0));
    entries_.resize(plans, {.strategy = "auto"});
    CADRE_RETURN_IF_ERROR(Share());
    CADRE_RETURN_IF_ERROR(Probe());
    CADRE_ASSIGN_OR_RETURN(problem, ProblemFor(Strategy::kAuto));
    for (Entry& entry : entries_) {
      CADRE_ASSIGN_OR_RETURN(const Plan plan, PlanFromProto(entry.plan, graph_, index_));
      entry.predicted = Predict(problem, plan).times;
    }
    return absl::OkStatus();
  }

  // Runs the plan: two steps of warm-up, one that sets the number of steps, then three rounds, of
  // which the median counts. Computation is the rest of a step after moves and waits.
  absl::Status Measure(Entry* entry) {
    const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
    CADRE_ASSIGN_OR_RETURN(const auto replica,
                           Replica::Make(spec_, entry->plan, *kernels, group_.transport));
    StepLoop loop(*replica, spec_.batch_per_group());
    CADRE_RETURN_IF_ERROR(group_.communicator.Barrier());
    CADRE_RETURN_IF_ERROR(loop.Run(2));
    CADRE_ASSIGN_OR_RETURN(const std::vector<double> first, loop.Time(1, 1));
    auto count = static_cast<uint32_t>(std::clamp(FLAGS_seconds / kRounds / first[0], 1.0, 200.0));
    CADRE_RETURN_IF_ERROR(
        group_.communicator.Broadcast(std::as_writable_bytes(std::span(&count, 1)), 0));
    const double waited = replica->seconds_exposed();
    const double moving = replica->network().seconds_moving();
    CADRE_ASSIGN_OR_RETURN(const std::vector<double> means,
                           loop.Time(kRounds, static_cast<int>(count)));
    const double total = kRounds * count;
    v1::StepTimes& measured = entry->measured;
    measured.set_step(Median(means));
    measured.set_moves((replica->network().seconds_moving() - moving) / total);
    measured.set_exposed((replica->seconds_exposed() - waited) / total - measured.moves());
    measured.set_compute(measured.step() - measured.moves() - measured.exposed());
    return replica->AwaitOperations();
  }

  nlohmann::ordered_json Line(const char* bench) const {
    nlohmann::ordered_json line = BenchLine(bench);
    line.update({{"model", model_},
                 {"batch", spec_.batch_per_group()},
                 {"micro_batches", spec_.micro_batches()},
                 {"ranks", group_.transport.size()},
                 {"link", FLAGS_link}});
    return line;
  }

  void Print(const Entry& entry) const {
    nlohmann::ordered_json line = Line("plan_error");
    line.update({{"strategy", entry.strategy},
                 {"mesh", MeshText(entry.plan)},
                 {"placed", PlacesLayers(entry.plan)},
                 {"predicted", Predicted(entry.predicted)},
                 {"measured", OwnThread(entry.measured)},
                 {"error", Rounded(entry.error(), 4)}});
    PrintLine(line);
  }

  void PrintPick() const {
    const auto fastest_by = [this](v1::StepTimes Entry::*times) -> const Entry& {
      return *std::ranges::min_element(
          entries_, {}, [times](const Entry& entry) { return (entry.*times).step(); });
    };
    const auto name = [](const Entry& entry) {
      return absl::StrCat(entry.strategy, " ", MeshText(entry.plan));
    };
    const Entry& picked = fastest_by(&Entry::predicted);
    const Entry& fastest = fastest_by(&Entry::measured);
    nlohmann::ordered_json line = Line("plan_pick");
    line.update({{"plans", entries_.size()},
                 {"picked", name(picked)},
                 {"fastest", name(fastest)},
                 {"picked_ms", Rounded(picked.measured.step() * 1e3, 3)},
                 {"fastest_ms", Rounded(fastest.measured.step() * 1e3, 3)},
                 {"ratio", Rounded(picked.measured.step() / fastest.measured.step(), 4)}});
    PrintLine(line);
  }

  static constexpr int kRounds = 3;

  const std::string model_;
  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  const StepGroup group_;
  HardwareModel hardware_;
  std::vector<Entry> entries_;
};

}  // namespace

absl::Status MeasurePlanErrors(const StepGroup& group) {
  LinkProfile link;
  if (group.transport.size() > 1) {
    CADRE_ASSIGN_OR_RETURN(link, MeasureLink(group.communicator));
  }
  for (const absl::string_view text : absl::StrSplit(FLAGS_models, ',')) {
    const std::vector<std::string> words = absl::StrSplit(text, ':');
    int batch = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &batch) || batch < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--models: '", text, "': write model:batch"));
    }
    CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.model = words[0],
                                                        .batch = batch,
                                                        .micro_batches = FLAGS_micro_batches,
                                                        .ranks = group.transport.size(),
                                                        .model_ranks = 0,
                                                        .space_ranks = 0}));
    CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
    CADRE_RETURN_IF_ERROR(
        ModelPlans(words[0], std::move(spec), std::move(graph), group, link).Run());
  }
  return absl::OkStatus();
}

}  // namespace cadre
