// Executes placements and pipelines whose layers take known times, and compares the step with what
// the model of placement and the formula of pipelines predict. Plans, messages and memory are those
// of training. A layer computes, and its rank then waits until the layer's time has passed. So the
// ranks need no processors of their own, and what remains of the difference is the executor: late
// messages, and work between layers.
//
// With one micro-batch the layers are placed with the minimum makespan
// (plan/search/placed_plans.h), for edges that take --edge units; a step is a forward and a
// backward pass, with the same makespan if the times of both are equal. With several, each rank is
// a stage.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/harness.h"
#include "bench/step/step.h"
#include "bench/training.h"
#include "lab/placement_program.h"
#include "plan/pipeline.h"
#include "plan/search/placed_plans.h"
#include "plan/search/placed_prediction.h"
#include "plan/search/staged_plans.h"

DECLARE_string(times);
DECLARE_double(unit_ms);
DECLARE_double(edge);

namespace cadre {
namespace {

using TimesByLayer = std::map<int, LayerSeconds>;

absl::StatusOr<TimesByLayer> ParseTimes(const Graph& graph) {
  TimesByLayer times;
  for (const absl::string_view text : absl::StrSplit(FLAGS_times, ',')) {
    const std::vector<std::string> words = absl::StrSplit(text, ':');
    LayerSeconds seconds;
    if (words.size() != 3 || !absl::SimpleAtod(words[1], &seconds.forward) ||
        !absl::SimpleAtod(words[2], &seconds.backward) || !(seconds.forward >= 0) ||
        !(seconds.backward >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--times: '", text, "': write layer:forward:backward"));
    }
    seconds.forward *= FLAGS_unit_ms * 1e-3;
    seconds.backward *= FLAGS_unit_ms * 1e-3;
    const size_t before = times.size();
    for (int l = 0; l < graph.size(); ++l) {
      if (graph[l].name == words[0] || absl::EndsWith(graph[l].name, "/" + words[0])) {
        times[l] = seconds;
      }
    }
    if (times.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat("--times: the model has no other layer '", words[0], "'"));
    }
  }
  return times;
}

v1::ModelTimes ModelTimesOf(const Graph& graph, const TimesByLayer& times) {
  v1::ModelTimes proto;
  for (const auto& [layer, seconds] : times) {
    v1::LayerTime& time = *proto.add_time();
    time.set_layer(graph[layer].name);
    time.set_samples(1);
    time.set_forward(seconds.forward);
    time.set_backward(seconds.backward);
  }
  return proto;
}

// Waits after each operation until its layer's time has passed since it began.
class KnownTimes final : public TapeObserver {
 public:
  explicit KnownTimes(const TimesByLayer& times) : times_(times) {}

  void Played(const Tape& /*tape*/, const TapeOp& op, absl::Time begin,
              double /*seconds*/) override {
    const auto found = times_.find(op.layer);
    if (found == times_.end()) return;
    double seconds = 0;
    if (op.kind == TapeOpKind::kForward) seconds = found->second.forward;
    if (op.kind == TapeOpKind::kBackward) seconds = found->second.backward;
    absl::SleepFor(begin + absl::Seconds(seconds) - absl::Now());
    busy_seconds_ += seconds;
  }
  double busy_seconds() const { return busy_seconds_; }

 private:
  const TimesByLayer& times_;
  double busy_seconds_ = 0;
};

class KnownTimesRun {
 public:
  KnownTimesRun(v1::RunSpec spec, Graph graph, TimesByLayer times, const StepGroup& group)
      : spec_(std::move(spec)),
        graph_(std::move(graph)),
        index_(ParameterIndex::FromGraph(graph_)),
        times_(std::move(times)),
        group_(group) {}

  absl::Status Run() {
    nlohmann::ordered_json line = BenchLine("makespan");
    line.update({{"model", spec_.name()},
                 {"times", FLAGS_times},
                 {"unit_ms", FLAGS_unit_ms},
                 {"edge", FLAGS_edge},
                 {"ranks", group_.transport.size()},
                 {"micro_batches", FLAGS_micro_batches}});
    CADRE_ASSIGN_OR_RETURN(const PlanProblem problem, KnownProblem());
    CADRE_ASSIGN_OR_RETURN(const Plan plan,
                           FLAGS_micro_batches == 1 ? Place(problem, &line) : StagesOf(problem));
    double predicted = 0;
    const PassOrder order =
        PassOrderOf(v1::Cluster::PIPELINE_UNSPECIFIED, FLAGS_micro_batches, graph_, plan);
    for (const PlacedRankTime& rank : SimulatePasses(problem, plan, order)) {
      predicted = std::max(predicted, rank.end);
    }
    CADRE_RETURN_IF_ERROR(Measure(PlanToProto(plan, index_), &line));
    line.update({{"predicted_units", Units(predicted)}});
    if (group_.lead()) PrintLine(line);
    return absl::OkStatus();
  }

 private:
  static double Units(double seconds) { return Rounded(seconds * 1e3 / FLAGS_unit_ms, 4); }

  // Hardware on which layers and edges take the given times.
  absl::StatusOr<PlanProblem> KnownProblem() const {
    HardwareModel hardware;
    hardware.times = MeasuredLayers(ModelTimesOf(graph_, times_), graph_);
    const double bytes = 4.0 * static_cast<double>(graph_[0].output.elements());
    hardware.link.beta = FLAGS_edge * FLAGS_unit_ms * 1e-3 / bytes;
    return ProblemOf(spec_, graph_, index_, group_.transport.size(), hardware);
  }

  absl::StatusOr<Plan> Place(const PlanProblem& problem, nlohmann::ordered_json* line) const {
    const PlacementProgram program;
    CADRE_ASSIGN_OR_RETURN(PlacedPlan placed,
                           PlaceLayersOnRanks(problem, problem.ranks, {.solver = &program}));
    for (int l = 0; l < graph_.size(); ++l) {
      (*line)["placement"][graph_[l].name] = placed.placement.schedule.device[l];
    }
    (*line)["makespan_units"] = Units(placed.placement.schedule.makespan);
    return std::move(placed.candidate.plan);
  }

  absl::StatusOr<Plan> StagesOf(const PlanProblem& problem) const {
    for (const Candidate& candidate : StagedPlans(problem)) {
      if (candidate.plan.mesh.Size(kStageAxis) == group_.transport.size()) return candidate.plan;
    }
    return absl::InvalidArgumentError("the model has no plan with one stage for each rank");
  }

  // Adds the step's time, the fraction of it for which the ranks were idle, and the memory of
  // activations.
  absl::Status Measure(const v1::Plan& plan, nlohmann::ordered_json* line) {
    const std::unique_ptr<Backend> kernels = MakeCpuBackend(1);
    CADRE_ASSIGN_OR_RETURN(const auto replica,
                           Replica::Make(spec_, plan, *kernels, group_.transport));
    StepLoop loop(*replica, FLAGS_micro_batches);
    CADRE_RETURN_IF_ERROR(loop.Run(2));
    KnownTimes observer(times_);
    replica->network().set_observer(&observer);
    // Ranks that are not aligned idle longer in the first step.
    CADRE_RETURN_IF_ERROR(loop.Run(1));
    const double busy = observer.busy_seconds();
    CADRE_ASSIGN_OR_RETURN(const std::vector<double> seconds, loop.Time(FLAGS_steps, 1));
    replica->network().set_observer(nullptr);
    CADRE_RETURN_IF_ERROR(replica->AwaitOperations());
    const double step = Median(seconds);
    std::vector<double> of_rank = {(observer.busy_seconds() - busy) / FLAGS_steps / step,
                                   static_cast<double>(replica->Memory().activations()),
                                   static_cast<double>(replica->PlannedMemory().activations())};
    std::vector<double> all(of_rank.size() * group_.transport.size());
    for (int rank = 0; rank < group_.transport.size(); ++rank) {
      const auto part = std::span(all).subspan(of_rank.size() * rank, of_rank.size());
      if (rank == group_.transport.rank()) std::ranges::copy(of_rank, part.begin());
      CADRE_RETURN_IF_ERROR(group_.communicator.Broadcast(std::as_writable_bytes(part), rank));
      (*line)["idle"].push_back(Rounded(1 - part[0], 4));
      (*line)["activation_bytes"].push_back(part[1]);
      (*line)["planned_activation_bytes"].push_back(part[2]);
    }
    line->update({{"step_units", Units(step)},
                  {"min_step_units", Units(*std::ranges::min_element(seconds))}});
    return absl::OkStatus();
  }

  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  const TimesByLayer times_;
  const StepGroup group_;
};

}  // namespace

absl::Status MeasureMakespan(const StepGroup& group) {
  CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.model = FLAGS_model,
                                                      .batch = FLAGS_micro_batches,
                                                      .micro_batches = FLAGS_micro_batches,
                                                      .ranks = group.transport.size(),
                                                      .model_ranks = 0,
                                                      .space_ranks = 0}));
  CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
  CADRE_ASSIGN_OR_RETURN(TimesByLayer times, ParseTimes(graph));
  return KnownTimesRun(std::move(spec), std::move(graph), std::move(times), group).Run();
}

}  // namespace cadre
