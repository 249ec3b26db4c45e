// Chooses the number of groups. P workers make G groups of p = P / G ranks; every group's step has
// the same B samples. More groups mean fewer steps per epoch, but also a larger total batch, which
// needs more epochs, and fewer ranks that share a group's work. When further groups no longer
// reduce the time, ranks are better used inside the groups, on a split model. This is the hybrid
// rule of Pal et al. 2019 ("Optimizing multi-GPU parallelization strategies for deep learning
// training", IEEE Micro), applied here to the predicted step of the best plan for each p:
//
//   time = floor(D / (G B)) E(G B) (step(p) + average(G, p) / H)
//
//   D        samples per epoch.
//   E        epochs by the measured table, at G B / batch_per_worker workers: groups that average
//            every step are equivalent to so many synchronous workers. That E does not change for
//            H > 1 is proved only up to an order of magnitude (plan/cost/averaging_interval.h), so
//            H stays within the stricter of the two bounds (Yu, Yang, Zhu 2019), and is no larger
//            than needed to make averaging cheap.
//   average  each rank sends its n / p words to the aggregators and receives as many (Lee et al.
//            2020), over the slowest link between groups, without other traffic, since all groups
//            wait for the round. If the spec states the number of aggregators, the slices of all
//            groups share the aggregators' links, and the slower of the two limits counts.
//
// Workers are assigned to groups host by host in the profile's order, and the slowest group
// determines the step. Groups on equal hosts are of one kind and are planned once; at most
// kMaxPlanned kinds are planned, those that a rough estimate finds slowest. Cost: one search per
// divisor of P and kind of group.
#include "plan/search/group_choice.h"
#include "base/counted_noun.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "model/problem.h"
#include "plan/cost/averaging_interval.h"
#include "plan/cost/hierarchical_averaging.h"
#include "plan/cost/time_to_accuracy.h"

namespace cadre {
namespace {

// At most so many kinds of groups are examined, and those that a rough estimate finds slowest are
// planned. Kinds are few unless every link was measured separately.
constexpr size_t kMaxKinds = 64;
constexpr size_t kMaxPlanned = 6;
// A longer interval is not worth the divergence if it saves less than this part of the time.
constexpr double kMinSaving = 0.01;

int64_t BatchOf(const GroupsProblem& problem) {
  return std::max<int64_t>(1, problem.spec->batch_per_group());
}

// --- Candidates ---

absl::Status CheckPins(const GroupsProblem& problem) {
  const auto check = [&](const char* what, int pinned) {
    if (pinned >= 0 && (pinned == 0 || problem.workers % pinned == 0)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        what, " is ", pinned, ", which does not divide the ", problem.workers, " workers"));
  };
  CADRE_RETURN_IF_ERROR(check("groups", problem.groups));
  CADRE_RETURN_IF_ERROR(check("ranks of a group", problem.ranks));
  const int64_t product = int64_t{problem.groups} * problem.ranks;
  if (product != 0 && product != problem.workers) {
    return absl::InvalidArgumentError(absl::StrCat(problem.groups, " groups of ", problem.ranks,
                                                   " ranks are not ", problem.workers, " workers"));
  }
  return absl::OkStatus();
}

// Possible numbers of groups, ascending.
std::vector<int> NumbersOfGroups(const GroupsProblem& problem) {
  std::vector<int> numbers;
  const bool pinned = problem.groups > 0 || problem.ranks > 0;
  for (int groups = 1; groups <= problem.workers; ++groups) {
    if (problem.workers % groups != 0) continue;
    const bool wanted = (problem.groups == 0 || groups == problem.groups) &&
                        (problem.ranks == 0 || problem.workers / groups == problem.ranks);
    const bool by_default = pinned || groups == 1 || problem.epochs != nullptr;
    const bool bounded = problem.max_groups > 0 ? groups <= problem.max_groups : by_default;
    if (wanted && (pinned || bounded)) numbers.push_back(groups);
  }
  return numbers;
}

// --- The step of a group ---

// A rough estimate for comparison: computing, and one all-reduce.
double RoughSeconds(const GroupsProblem& problem, const HardwareModel& hardware, int ranks) {
  double flops = 0;
  for (int l = 0; l < problem.graph->size(); ++l) {
    flops += (*problem.graph)[l].flops;
  }
  const double words = AllReduce(problem.index->size(), ranks).words;
  const double computing = hardware.flops > 0 ? flops / hardware.flops : 0;
  return 3 * computing * BatchOf(problem) / ranks + hardware.link.beta * kBytesPerWord * words;
}

auto NumbersOf(const HardwareModel& hardware) {
  return std::tuple(hardware.flops, hardware.update_seconds, hardware.copy_seconds, hardware.cores,
                    hardware.memory_bytes, hardware.per_host, hardware.link.alpha,
                    hardware.link.beta, hardware.link.gamma, hardware.link.processor,
                    hardware.inside.alpha, hardware.inside.beta, hardware.inside.gamma,
                    hardware.inside.processor);
}

struct KindOfHardware {
  HardwareModel hardware;
  double rough = 0;
};

// The hardware of all groups, equal ones once, the slowest first.
absl::StatusOr<std::vector<KindOfHardware>> HardwareOfGroups(const GroupsProblem& problem,
                                                             int groups, int ranks) {
  std::vector<KindOfHardware> kinds_of_hardware;
  if (problem.profile == nullptr) return std::vector<KindOfHardware>{{problem.uniform}};
  std::vector<GroupKind> kinds = KindsOfGroups(*problem.profile, groups, ranks);
  kinds.resize(std::min(kinds.size(), kMaxKinds));
  for (const GroupKind& kind : kinds) {
    CADRE_ASSIGN_OR_RETURN(HardwareModel hardware,
                           HardwareOf(*problem.profile, problem.spec->model(), *problem.graph,
                                      kind.first_worker, ranks));
    const bool known = std::any_of(
        kinds_of_hardware.begin(), kinds_of_hardware.end(),
        [&](const auto& other) { return NumbersOf(other.hardware) == NumbersOf(hardware); });
    if (known) continue;
    const double rough = RoughSeconds(problem, hardware, ranks);
    kinds_of_hardware.push_back({std::move(hardware), rough});
  }
  std::stable_sort(kinds_of_hardware.begin(), kinds_of_hardware.end(),
                   [](const auto& a, const auto& b) { return a.rough > b.rough; });
  kinds_of_hardware.resize(std::min(kinds_of_hardware.size(), kMaxPlanned));
  return kinds_of_hardware;
}

// Fills in step, mesh and slowest group.
absl::Status PlanSlowest(const GroupsProblem& problem, GroupChoice& choice) {
  CADRE_ASSIGN_OR_RETURN(std::vector<KindOfHardware> kinds_of_hardware,
                         HardwareOfGroups(problem, choice.groups, choice.ranks));
  choice.step_seconds = -1;
  for (KindOfHardware& kind : kinds_of_hardware) {
    CADRE_ASSIGN_OR_RETURN(PlanProblem group,
                           ProblemOf(*problem.spec, *problem.graph, *problem.index, choice.ranks,
                                     std::move(kind.hardware)));
    if (!group.hardware.computes()) group.overlap = false;
    CADRE_ASSIGN_OR_RETURN(const SearchResult found, Search(group));
    if (found.best.prediction.times.step() <= choice.step_seconds) continue;
    choice.step_seconds = found.best.prediction.times.step();
    choice.mesh = found.best.plan.mesh;
  }
  return absl::OkStatus();
}

// --- Averaging ---

absl::StatusOr<LinkProfile> LinkAcross(const GroupsProblem& problem) {
  if (problem.profile == nullptr) return problem.uniform.link;
  CADRE_ASSIGN_OR_RETURN(
      const HardwareModel hardware,
      HardwareOf(*problem.profile, problem.spec->model(), *problem.graph, 0, problem.workers));
  return hardware.link;
}

void AddAveraging(const GroupsProblem& problem, const LinkProfile& link, GroupChoice& choice) {
  if (choice.groups == 1) return;
  const AggregationTraffic traffic =
      TrafficOfRound(problem.index->size(), choice.groups, choice.ranks);
  choice.bytes_per_average = traffic.bytes_per_round;
  const double rank_bytes =
      kBytesPerWord * (traffic.words_up_per_rank + traffic.words_down_per_rank);
  const uint32_t shards = problem.spec->cluster().aggregators();
  const double shard_bytes = shards > 0 ? 1.0 * traffic.bytes_per_round / shards : 0;
  choice.averaging_seconds = 2 * link.alpha + link.beta * std::max(rank_bytes, shard_bytes);
}

// --- Statistics ---

// Steps of an epoch, each on one batch of every group.
double EpochSteps(const GroupsProblem& problem, int groups) {
  return StepsPerEpoch(problem.samples, BatchOf(problem) * groups);
}

// Steps of the whole training; nullopt if unknown.
std::optional<double> StepsOfTraining(const GroupsProblem& problem, const GroupChoice& choice) {
  const v1::Stop& stop = problem.spec->stop();
  const double pass = EpochSteps(problem, choice.groups);
  if (choice.epochs && pass > 0) return *choice.epochs * pass;
  if (stop.steps() > 0) return stop.steps();
  if (stop.epochs() > 0 && pass > 0) return stop.epochs() * pass;
  return std::nullopt;
}

// Chooses the smallest H of 1, 2, 4, ... with which a step takes nearly as little time as with the
// largest H within the bound.
void ChooseInterval(const GroupsProblem& problem, GroupChoice& choice) {
  if (choice.groups == 1) return;
  choice.every_steps = problem.spec->averaging().every_steps();
  if (choice.every_steps > 0) return;
  const std::optional<double> steps = StepsOfTraining(problem, choice);
  const int64_t most =
      steps ? MaxStepsBetweenAverages(*steps, choice.groups, IntervalBound::kYu) : 1;
  int64_t largest = 1;
  while (largest * 2 <= most) largest *= 2;
  const double shortest = choice.step_seconds + choice.averaging_seconds / largest;
  choice.every_steps = 1;
  while (choice.every_steps < largest && choice.seconds_per_step() > shortest * (1 + kMinSaving)) {
    choice.every_steps *= 2;
  }
}

// Errors: OutOfRange if the table does not cover the batch, or the target was not reached with it.
absl::Status AddEpochs(const GroupsProblem& problem, const EpochsCurve& curve,
                       GroupChoice& choice) {
  const double workers =
      1.0 * BatchOf(problem) * choice.groups / problem.epochs->batch_per_worker();
  CADRE_ASSIGN_OR_RETURN(const double epochs, curve.At(workers));
  if (!std::isfinite(epochs)) {
    return absl::OutOfRangeError(absl::StrFormat("batches of %d samples did not reach the target",
                                                 BatchOf(problem) * choice.groups));
  }
  choice.epochs = epochs;
  return absl::OkStatus();
}

void AddTimes(const GroupsProblem& problem, GroupChoice& choice) {
  const int64_t samples = BatchOf(problem) * choice.groups;
  choice.seconds_per_sample = choice.seconds_per_step() / samples;
  choice.seconds_per_epoch = EpochSteps(problem, choice.groups) * choice.seconds_per_step();
  if (choice.epochs && choice.seconds_per_epoch > 0) {
    choice.seconds_to_target = TimeToAccuracy(choice.seconds_per_step(),
                                              EpochSteps(problem, choice.groups), *choice.epochs);
  }
}

// --- Result ---

absl::StatusOr<GroupChoice> ChoiceOf(const GroupsProblem& problem, const EpochsCurve* curve,
                                     const LinkProfile& across, int groups) {
  GroupChoice choice{.groups = groups, .ranks = problem.workers / groups};
  // Checked before planning, which takes longer.
  if (curve != nullptr) CADRE_RETURN_IF_ERROR(AddEpochs(problem, *curve, choice));
  if (problem.samples > 0 && EpochSteps(problem, groups) < 1) {
    return absl::OutOfRangeError(
        absl::StrFormat("an epoch of %.0f samples has less than one step of %d", problem.samples,
                        BatchOf(problem) * groups));
  }
  CADRE_RETURN_IF_ERROR(PlanSlowest(problem, choice));
  AddAveraging(problem, across, choice);
  ChooseInterval(problem, choice);
  AddTimes(problem, choice);
  return choice;
}

// The quantity that is minimised.
double Cost(const GroupChoice& choice) {
  return choice.seconds_to_target.value_or(
      choice.seconds_per_epoch > 0 ? choice.seconds_per_epoch : choice.seconds_per_sample);
}

std::string Named(const GroupChoice& choice) {
  return absl::StrCat(Counted(choice.groups, "group"), " of ", choice.ranks);
}

void Explain(const GroupsProblem& problem, GroupsResult& answer) {
  const GroupChoice& best = answer.best();
  const bool by_target = best.seconds_to_target.has_value();
  answer.reason = absl::StrCat(Named(best),
                               by_target ? ": least time to the target" : ": least time per epoch");
  for (const GroupChoice& other : answer.choices) {
    if (other.groups <= best.groups) continue;
    if (!answer.more || other.groups < answer.more->groups) answer.more = other;
  }
  if (!answer.more) {
    absl::StrAppend(&answer.reason, "; more groups were not possible");
    if (problem.epochs == nullptr && problem.max_groups == 0 && problem.workers > 1) {
      absl::StrAppend(&answer.reason,
                      ": the number of epochs that they need is unknown (give a table of epochs)");
    }
    return;
  }
  const GroupChoice& more = *answer.more;
  answer.more_time_ratio = Cost(more) / Cost(best);
  absl::StrAppendFormat(
      &answer.reason,
      "; %s would take %.3g times as long: %.3g times the steps per epoch, %.3g times the step",
      Named(more), answer.more_time_ratio, 1.0 * best.groups / more.groups,
      more.seconds_per_step() / best.seconds_per_step());
  if (!by_target) return;
  absl::StrAppendFormat(&answer.reason, ", %.3g times the epochs", *more.epochs / *best.epochs);
  answer.crossover = best.ranks > 1;
  if (answer.crossover) {
    absl::StrAppendFormat(&answer.reason,
                          ": from %d groups on, ranks are better used inside groups (%d per group)",
                          best.groups, best.ranks);
  }
}

}  // namespace

absl::StatusOr<GroupsResult> ChooseGroups(const GroupsProblem& problem) {
  CADRE_RETURN_IF_ERROR(CheckPins(problem));
  std::optional<EpochsCurve> curve;
  if (problem.epochs != nullptr) {
    if (problem.epochs->batch_per_worker() == 0) {
      return absl::InvalidArgumentError("the table of epochs has batch_per_worker 0");
    }
    if (!(problem.samples > 0)) {
      return absl::InvalidArgumentError(
          "a table of epochs requires the number of samples per epoch");
    }
    CADRE_ASSIGN_OR_RETURN(curve, EpochsCurve::FromTable(*problem.epochs));
  }
  CADRE_ASSIGN_OR_RETURN(const LinkProfile across, LinkAcross(problem));
  GroupsResult answer;
  absl::Status first;
  for (const int groups : NumbersOfGroups(problem)) {
    absl::StatusOr<GroupChoice> choice =
        ChoiceOf(problem, curve ? &*curve : nullptr, across, groups);
    if (choice.ok()) {
      answer.choices.push_back(*std::move(choice));
      continue;
    }
    if (first.ok()) first = choice.status();
    answer.rejected.push_back(
        {groups, problem.workers / groups, std::string(choice.status().message())});
  }
  if (answer.choices.empty()) return first;
  std::stable_sort(answer.choices.begin(), answer.choices.end(),
                   [](const auto& a, const auto& b) { return Cost(a) < Cost(b); });
  Explain(problem, answer);
  return answer;
}

}  // namespace cadre
