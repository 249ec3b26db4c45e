#include "cli/plan_epochs.h"

#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/json.h"
#include "cli/table.h"
#include "coordinator/cost/group_hybrid.h"
#include "coordinator/cost/time_to_accuracy.h"
#include "coordinator/plan/search.h"
#include "spec/epochs_table.h"

namespace cadre {
namespace {

// The planner's step for so many workers of so many devices each, and the mesh that it takes.
class Steps {
 public:
  explicit Steps(const PlanQuestion& question, int64_t batch_per_worker)
      : question_(question), batch_per_worker_(batch_per_worker) {}

  std::optional<double> operator()(int64_t workers, int64_t devices) {
    PlanProblem problem = question_.problem;
    problem.ranks = static_cast<int>(workers * devices);
    problem.batch = workers * batch_per_worker_;
    const absl::StatusOr<SearchResult> searched = Search(problem);
    if (!searched.ok()) return std::nullopt;
    meshes_[{workers, devices}] = searched->best.plan.mesh;
    return searched->best.prediction.times.step();
  }

  // Requires: its step was asked for, and there is one.
  const Mesh& MeshOf(const DevicePlan& way) const {
    return meshes_.at({way.workers, way.model_devices});
  }

 private:
  const PlanQuestion& question_;
  const int64_t batch_per_worker_;
  std::map<std::pair<int64_t, int64_t>, Mesh> meshes_;
};

// Batches that the table knows and a pass has no step of.
std::string LeftOut(const TimeToTarget& target, const EpochsCurve& curve, int64_t ranks) {
  for (const int64_t workers : DivisorsOf(ranks)) {
    const auto batch = static_cast<double>(workers * target.table.batch_per_worker());
    if (!curve.At(static_cast<double>(workers)).ok() || StepsOfPass(target.samples, batch) >= 1) {
      continue;
    }
    return absl::StrFormat(
        "batches of %d workers and more are left out: a pass of %.0f samples has no step of %.0f",
        workers, target.samples, batch);
  }
  return "";
}

void TakeOwnBatch(const PlanQuestion& question, const EpochsCurve& curve, double step_seconds,
                  TimeToTarget& target) {
  const auto batch = static_cast<double>(question.problem.batch);
  const double steps = StepsOfPass(target.samples, batch);
  const absl::StatusOr<double> epochs = curve.At(batch / target.table.batch_per_worker());
  if (!epochs.ok()) {
    target.note = std::string(epochs.status().message());
  } else if (!std::isfinite(*epochs)) {
    target.note = "so large a batch did not reach the target";
  } else if (steps < 1) {
    target.note =
        absl::StrFormat("a pass of %.0f samples has no step of %.0f", target.samples, batch);
  } else {
    target.epochs = *epochs;
    target.seconds = TimeToAccuracy(step_seconds, steps, *epochs);
  }
}

void TakeChoices(const PlanQuestion& question, const EpochsCurve& curve, TimeToTarget& target) {
  const int64_t batch = target.table.batch_per_worker();
  Steps steps(question, batch);
  const TrainingTimes times = {.epochs = &curve,
                               .samples = target.samples,
                               .batch_per_worker = batch,
                               .step_seconds = std::ref(steps)};
  const int64_t ranks = question.problem.ranks;
  const std::vector<DevicePlan> ways = WaysToTrain(ranks, times);
  for (const DevicePlan& way : ways) {
    target.choices.push_back({.way = way, .batch = way.workers * batch, .mesh = steps.MeshOf(way)});
  }
  target.left_out = LeftOut(target, curve, ranks);
  if (ways.empty()) return;
  target.best = SoonestOf(ways);
  // The one in which every worker has a batch of its own comes last, if it is known.
  if (ways.back().model_devices == 1) {
    target.gain = ways.back().seconds / ways[*target.best].seconds;
  }
  if (question.problem.pins.mesh.empty()) target.crossover = CrossoverDevices(ranks, times);
}

}  // namespace

absl::StatusOr<double> SamplesOfPass(const PlanQuestion& question) {
  if (question.options.samples) return static_cast<double>(*question.options.samples);
  const v1::Data& data = question.spec.data();
  if (data.has_synthetic()) return static_cast<double>(data.synthetic().train_samples());
  return absl::InvalidArgumentError(
      "--epochs needs --samples beside it: how many samples has a pass over the data?");
}

absl::StatusOr<TimeToTarget> PlanTimeToTarget(const PlanQuestion& question, double step_seconds) {
  TimeToTarget target;
  CADRE_ASSIGN_OR_RETURN(target.table, ReadEpochsTable(*question.options.epochs));
  const std::string& path = *question.options.epochs;
  const absl::StatusOr<EpochsCurve> curve = EpochsCurve::FromTable(target.table);
  if (!curve.ok()) return Annotate(curve.status(), path);
  CADRE_ASSIGN_OR_RETURN(target.samples, SamplesOfPass(question));
  TakeOwnBatch(question, *curve, step_seconds, target);
  TakeChoices(question, *curve, target);
  return target;
}

std::string TimeToTargetText(const TimeToTarget& target) {
  std::string text = absl::StrFormat("to an accuracy of %g by %.0f samples a pass: ",
                                     target.table.target_accuracy(), target.samples);
  if (target.seconds) {
    absl::StrAppendFormat(&text, "%.4g epochs, %s\n", *target.epochs,
                          FormatDuration(*target.seconds));
  } else {
    absl::StrAppend(&text, target.note, "\n");
  }
  if (!target.left_out.empty()) absl::StrAppend(&text, target.left_out, "\n");
  if (target.choices.empty()) return text;
  Table table({"BATCHES OF", "EACH SHARED BY", "BATCH", "EPOCHS", "MESH", "STEP ms", "TO TARGET"});
  for (const BatchChoice& choice : target.choices) {
    const DevicePlan& way = choice.way;
    table.AddRow({absl::StrCat(way.workers, " workers"), absl::StrCat(way.model_devices),
                  absl::StrCat(choice.batch), absl::StrFormat("%.4g", way.epochs),
                  choice.mesh.ToString(), absl::StrFormat("%.4f", 1e3 * way.step_seconds),
                  FormatDuration(way.seconds)});
  }
  const BatchChoice& best = target.choices[*target.best];
  absl::StrAppend(&text, table.Text(), "soonest with a batch of ", best.batch, ": ",
                  best.way.model_devices == 1
                      ? "data parallelism still pays"
                      : "the model is split where more samples would cost epochs");
  if (target.gain) absl::StrAppendFormat(&text, " (gain %.3f)", *target.gain);
  if (target.crossover)
    absl::StrAppend(&text, "; so it is from ", *target.crossover, " workers on");
  absl::StrAppend(&text, "\n");
  return text;
}

std::string TimeToTargetJson(const TimeToTarget& target) {
  std::vector<std::string> rows;
  for (const BatchChoice& choice : target.choices) {
    rows.push_back(JsonObject()
                       .Add("data_workers", static_cast<uint64_t>(choice.way.workers))
                       .Add("devices", static_cast<uint64_t>(choice.way.model_devices))
                       .Add("batch", static_cast<uint64_t>(choice.batch))
                       .Add("epochs", choice.way.epochs)
                       .Add("mesh", choice.mesh.ToString())
                       .Add("step_seconds", choice.way.step_seconds)
                       .Add("seconds_to_target", choice.way.seconds)
                       .Text());
  }
  return JsonObject()
      .AddRaw("target_accuracy", JsonNumber(target.table.target_accuracy()))
      .Add("samples", target.samples)
      .AddRaw("epochs", target.epochs ? JsonNumber(*target.epochs) : "null")
      .AddRaw("seconds_to_target", target.seconds ? JsonNumber(*target.seconds) : "null")
      .Add("note", target.note)
      .Add("left_out", target.left_out)
      .AddRaw("choices", absl::StrCat("[", absl::StrJoin(rows, ","), "]"))
      .AddRaw("best", target.best ? rows[*target.best] : "null")
      .AddRaw("gain", target.gain ? JsonNumber(*target.gain) : "null")
      .AddRaw("crossover_workers",
              target.crossover ? absl::StrCat(*target.crossover) : std::string("null"))
      .Text();
}

}  // namespace cadre
