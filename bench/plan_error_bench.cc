// Compares predicted with measured step times: one process for each rank of a group, over real
// links. A plan divides a model's layers among the ranks. For each model, the plans of all
// strategies of the papers and the planner's own plan are predicted from a short measurement of
// layers and links, and then run; with --micro_batches, also a pipeline for each number of stages;
// with --placed, also the plan that places each layer on one rank.
//
//   bench_plan_error --rank 0 --peers 10.0.0.1:7100,10.0.0.2:7100 --models lenet:256,alexnet:32
//
// Rank 0 prints a JSON line for each plan, with the predicted and measured parts of the step, and
// one for each model with the planner's choice and the fastest plan. plan_error.py creates the
// hosts and runs the program on them.
#include <gflags/gflags.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/harness.h"
#include "bench/training.h"
#include "comm/communicator.h"
#include "comm/link_probe.h"
#include "kernels/cpu/openmp_settings.h"
#include "member/agreement.h"
#include "plan/cost/collective_cost.h"
#include "plan/search/placed_plans.h"
#include "plan/search/planner.h"
#include "plan/search/prediction.h"
#include "plan/search/search.h"
#include "plan/search/staged_plans.h"
#include "worker/probe/layer_probe.h"
#include "worker/train/replica.h"

DEFINE_string(models, "lenet:256",
              "model:batch, separated by commas; the batch is that of all ranks.");
DEFINE_int32(micro_batches, 1, "Micro-batches of a step; must divide the batches.");
DEFINE_string(strategies, "", "Strategies whose plans are run, separated by commas; empty: all.");
DEFINE_bool(placed, false, "Also the plan of plan/search/placed_plans.h.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_double(cores, 0, "Cores that one rank has for itself; 0: as many as it uses.");
DEFINE_double(seconds, 4, "Approximate time for which the steps of a plan are measured.");
DEFINE_int32(rank, 0, "Rank of this process.");
DEFINE_string(peers, "127.0.0.1:0", "host:port of every rank, separated by commas.");
DEFINE_string(link, "", "Description of the links, for the output.");

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
  ModelPlans(std::string model, v1::RunSpec spec, Graph graph, Transport& transport,
             Communicator& communicator, const LinkProfile& link)
      : model_(std::move(model)),
        spec_(std::move(spec)),
        graph_(std::move(graph)),
        index_(ParameterIndex::FromGraph(graph_)),
        transport_(transport),
        communicator_(communicator) {
    hardware_.link = link;
    hardware_.cores = FLAGS_cores;
  }

  absl::Status Run() {
    CADRE_RETURN_IF_ERROR(ChooseStrategies());
    CADRE_RETURN_IF_ERROR(Probe());
    CADRE_RETURN_IF_ERROR(ChooseBest());
    for (Entry& entry : entries_) {
      CADRE_RETURN_IF_ERROR(Measure(&entry));
      if (lead()) Print(entry);
    }
    if (lead()) PrintPick();
    return absl::OkStatus();
  }

 private:
  bool lead() const { return transport_.rank() == 0; }

  // Replaces the plans of all ranks by the plans of rank 0.
  absl::Status Share() {
    for (Entry& entry : entries_) {
      CADRE_ASSIGN_OR_RETURN(const std::string bytes,
                             BroadcastText(entry.plan.SerializeAsString(), communicator_));
      if (!entry.plan.ParseFromString(bytes)) return absl::InternalError("plan of rank 0");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PlanProblem> ProblemFor(Strategy strategy) const {
    CADRE_ASSIGN_OR_RETURN(PlanProblem problem,
                           ProblemOf(spec_, graph_, index_, transport_.size(), hardware_));
    problem.strategy = strategy;
    return problem;
  }

  // Plans of smaller groups that time all layers for the samples of one rank of a stage, or of the
  // only rank that has a layer.
  std::vector<v1::Plan> PlansOfStages() const {
    std::vector<v1::Plan> plans;
    for (const int ranks : DivisorsOf(transport_.size())) {
      v1::RunSpec smaller = spec_;
      smaller.mutable_cluster()->set_model_ranks(1);
      smaller.mutable_cluster()->set_ranks_per_group(ranks);
      const absl::StatusOr<v1::Plan> plan = MakePlan(smaller, ranks);
      if (plan.ok() && ranks < transport_.size()) plans.push_back(*plan);
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
                                         return communicator_.Barrier();
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
    if (lead()) {
      if (IsSelected("auto")) {
        CADRE_ASSIGN_OR_RETURN(const SearchResult found, Search(problem));
        AddIfNew("auto", found.best.plan);
      }
      for (const Candidate& staged : StagedPlans(problem)) AddIfNew("stages", staged.plan);
      if (FLAGS_placed && problem.ranks > 1) {
        CADRE_ASSIGN_OR_RETURN(const PlacedPlan placed, PlaceLayersOnRanks(problem, problem.ranks));
        AddIfNew("placed", placed.candidate.plan);
      }
    }
    auto plans = static_cast<uint32_t>(entries_.size());
    CADRE_RETURN_IF_ERROR(communicator_.Broadcast(std::as_writable_bytes(std::span(&plans, 1)), 0));
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
                           Replica::Make(spec_, entry->plan, *kernels, transport_));
    StepLoop loop(*replica, spec_.batch_per_group());
    CADRE_RETURN_IF_ERROR(communicator_.Barrier());
    CADRE_RETURN_IF_ERROR(loop.Run(2));
    absl::Time start = absl::Now();
    CADRE_RETURN_IF_ERROR(loop.Run(1));
    auto count = static_cast<uint32_t>(std::clamp(
        FLAGS_seconds / kRounds / absl::ToDoubleSeconds(absl::Now() - start), 1.0, 200.0));
    CADRE_RETURN_IF_ERROR(communicator_.Broadcast(std::as_writable_bytes(std::span(&count, 1)), 0));
    std::vector<double> means;
    const double waited = WaitedSeconds(*replica);
    const double moving = replica->seconds_moving();
    for (int round = 0; round < kRounds; ++round) {
      start = absl::Now();
      CADRE_RETURN_IF_ERROR(loop.Run(static_cast<int>(count)));
      means.push_back(absl::ToDoubleSeconds(absl::Now() - start) / count);
    }
    const double total = kRounds * count;
    v1::StepTimes& measured = entry->measured;
    measured.set_step(Median(means));
    measured.set_moves((replica->seconds_moving() - moving) / total);
    measured.set_exposed((WaitedSeconds(*replica) - waited) / total - measured.moves());
    measured.set_compute(measured.step() - measured.moves() - measured.exposed());
    return replica->AwaitOperations();
  }

  nlohmann::ordered_json Line(const char* bench) const {
    nlohmann::ordered_json line = BenchLine(bench);
    line.update({{"model", model_},
                 {"batch", spec_.batch_per_group()},
                 {"micro_batches", spec_.micro_batches()},
                 {"ranks", transport_.size()},
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
  Transport& transport_;
  Communicator& communicator_;
  HardwareModel hardware_;
  std::vector<Entry> entries_;
};

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(
      RequirePositive({{"--threads", FLAGS_threads}, {"--micro_batches", FLAGS_micro_batches}}));
  if (!(FLAGS_seconds > 0)) return absl::InvalidArgumentError("--seconds must be positive");
  CADRE_ASSIGN_OR_RETURN(const ConnectedRank connected,
                         ConnectRank(FLAGS_rank, FLAGS_peers, /*shared_memory=*/true));
  Transport* const transport = connected.transport.get();
  std::vector<int> ranks;
  for (int rank = 0; rank < transport->size(); ++rank) ranks.push_back(rank);
  Communicator all(*transport, ranks);
  LinkProfile link;
  if (transport->size() > 1) {
    CADRE_ASSIGN_OR_RETURN(link, MeasureLink(all));
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
                                                        .ranks = transport->size(),
                                                        .model_ranks = 0,
                                                        .space_ranks = 0}));
    CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
    CADRE_RETURN_IF_ERROR(
        ModelPlans(words[0], std::move(spec), std::move(graph), *transport, all, link).Run());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::EnsureOpenMpSettings(argv);
  return cadre::BenchMain(
      argc, argv, "bench/plan_error_bench.cc",
      "bench_plan_error: compares predicted with measured step times; rank 0 prints JSON lines.",
      cadre::Run);
}
