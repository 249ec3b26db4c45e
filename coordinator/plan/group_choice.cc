#include "coordinator/plan/group_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "coordinator/cost/averaging_interval.h"
#include "coordinator/cost/hierarchical_averaging.h"
#include "coordinator/cost/time_to_accuracy.h"
#include "coordinator/plan/group_kinds.h"

namespace cadre {
namespace {

// Kinds of groups whose machines are looked at, and those of them that are planned, the slowest by
// a rough measure first. Kinds are few unless every link was measured apart.
constexpr size_t kMostKinds = 64;
constexpr size_t kMostPlanned = 6;
// Averaging more seldom than this little of the time is worth is not worth the drift.
constexpr double kLittle = 0.01;

int64_t BatchOf(const GroupsQuestion& question) {
  return std::max<int64_t>(1, question.spec->batch_per_group());
}

// --- which groups ---

absl::Status CheckPins(const GroupsQuestion& question) {
  const auto check = [&](const char* what, int pinned) {
    if (pinned >= 0 && (pinned == 0 || question.workers % pinned == 0)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        what, " is ", pinned, ", which does not divide the ", question.workers, " workers"));
  };
  CADRE_RETURN_IF_ERROR(check("groups", question.groups));
  CADRE_RETURN_IF_ERROR(check("ranks of a group", question.ranks));
  const int64_t product = int64_t{question.groups} * question.ranks;
  if (product != 0 && product != question.workers) {
    return absl::InvalidArgumentError(absl::StrCat(question.groups, " groups of ", question.ranks,
                                                   " ranks are not ", question.workers,
                                                   " workers"));
  }
  return absl::OkStatus();
}

// Numbers of groups, the fewest first.
std::vector<int> NumbersOfGroups(const GroupsQuestion& question) {
  std::vector<int> numbers;
  const bool pinned = question.groups > 0 || question.ranks > 0;
  for (int groups = 1; groups <= question.workers; ++groups) {
    if (question.workers % groups != 0) continue;
    const bool wanted = (question.groups == 0 || groups == question.groups) &&
                        (question.ranks == 0 || question.workers / groups == question.ranks);
    const bool dared = pinned || groups == 1 || question.epochs != nullptr;
    const bool bounded = question.most_groups > 0 ? groups <= question.most_groups : dared;
    if (wanted && (pinned || bounded)) numbers.push_back(groups);
  }
  return numbers;
}

// --- a group's step ---

// The longer the slower, roughly: computing, and one all-reduce.
double RoughSeconds(const GroupsQuestion& question, const GroupMachine& machine, int ranks) {
  double flops = 0;
  for (int l = 0; l < question.graph->size(); ++l) {
    flops += static_cast<double>((*question.graph)[l].flops);
  }
  const double words = AllReduce(static_cast<double>(question.index->size()), ranks).words;
  const double computing = machine.flops > 0 ? flops / machine.flops : 0;
  return 3 * computing * static_cast<double>(BatchOf(question)) / ranks +
         machine.link.beta * static_cast<double>(kBytesPerWord) * words;
}

auto NumbersOf(const GroupMachine& machine) {
  return std::tuple(machine.flops, machine.update_seconds, machine.copy_seconds, machine.cores,
                    machine.memory_bytes, machine.per_host, machine.link.alpha, machine.link.beta,
                    machine.link.gamma, machine.link.processor, machine.inside.alpha,
                    machine.inside.beta, machine.inside.gamma, machine.inside.processor);
}

struct KindOfMachine {
  GroupMachine machine;
  int first_worker = 0;
  double rough = 0;
};

// Machines of all groups, equal ones once, the slowest first.
absl::StatusOr<std::vector<KindOfMachine>> MachinesOf(const GroupsQuestion& question, int groups,
                                                      int ranks) {
  std::vector<KindOfMachine> machines;
  if (question.profile == nullptr) return std::vector<KindOfMachine>{{question.uniform}};
  std::vector<GroupKind> kinds = KindsOfGroups(*question.profile, groups, ranks);
  kinds.resize(std::min(kinds.size(), kMostKinds));
  for (const GroupKind& kind : kinds) {
    CADRE_ASSIGN_OR_RETURN(GroupMachine machine,
                           MachineOf(*question.profile, question.spec->model(), *question.graph,
                                     kind.first_worker, ranks));
    const bool known = std::any_of(machines.begin(), machines.end(), [&](const auto& other) {
      return NumbersOf(other.machine) == NumbersOf(machine);
    });
    if (known) continue;
    const double rough = RoughSeconds(question, machine, ranks);
    machines.push_back({std::move(machine), kind.first_worker, rough});
  }
  std::stable_sort(machines.begin(), machines.end(),
                   [](const auto& a, const auto& b) { return a.rough > b.rough; });
  machines.resize(std::min(machines.size(), kMostPlanned));
  return machines;
}

// Fills in step, mesh and slowest group.
absl::Status PlanSlowest(const GroupsQuestion& question, GroupChoice& choice) {
  CADRE_ASSIGN_OR_RETURN(std::vector<KindOfMachine> machines,
                         MachinesOf(question, choice.groups, choice.ranks));
  choice.step_seconds = -1;
  for (KindOfMachine& kind : machines) {
    CADRE_ASSIGN_OR_RETURN(PlanProblem problem,
                           ProblemOf(*question.spec, *question.graph, *question.index, choice.ranks,
                                     std::move(kind.machine)));
    if (!problem.machine.computes()) problem.overlap = false;
    CADRE_ASSIGN_OR_RETURN(const SearchResult found, Search(problem));
    if (found.best.prediction.times.step() <= choice.step_seconds) continue;
    choice.step_seconds = found.best.prediction.times.step();
    choice.mesh = found.best.plan.mesh;
    choice.slowest_first_worker = kind.first_worker;
  }
  return absl::OkStatus();
}

// --- averaging ---

absl::StatusOr<LinkProfile> LinkAcross(const GroupsQuestion& question) {
  if (question.profile == nullptr) return question.uniform.link;
  CADRE_ASSIGN_OR_RETURN(
      const GroupMachine machine,
      MachineOf(*question.profile, question.spec->model(), *question.graph, 0, question.workers));
  return machine.link;
}

void AddAveraging(const GroupsQuestion& question, const LinkProfile& link, GroupChoice& choice) {
  if (choice.groups == 1) return;
  const AggregationTraffic traffic =
      TrafficOfRound(question.index->size(), choice.groups, choice.ranks);
  choice.bytes_per_average = traffic.bytes_per_round;
  const double rank_bytes = static_cast<double>(kBytesPerWord) *
                            (traffic.words_up_per_rank + traffic.words_down_per_rank);
  const uint32_t shards = question.spec->cluster().aggregators();
  const double shard_bytes = shards > 0 ? static_cast<double>(traffic.bytes_per_round) / shards : 0;
  choice.averaging_seconds = 2 * link.alpha + link.beta * std::max(rank_bytes, shard_bytes);
}

// --- statistics ---

// Steps of a pass: each of all groups' samples.
double StepsOfPass(const GroupsQuestion& question, int groups) {
  return std::floor(question.samples / static_cast<double>(BatchOf(question) * groups));
}

// Steps of the whole training; nothing: not known.
std::optional<double> StepsOfTraining(const GroupsQuestion& question, const GroupChoice& choice) {
  const v1::Stop& stop = question.spec->stop();
  const double pass = StepsOfPass(question, choice.groups);
  if (choice.epochs && pass > 0) return *choice.epochs * pass;
  if (stop.steps() > 0) return stop.steps();
  if (stop.epochs() > 0 && pass > 0) return stop.epochs() * pass;
  return std::nullopt;
}

// The least of 1, 2, 4, ... up to the bound that makes a step nearly as short as the largest does.
void ChooseInterval(const GroupsQuestion& question, GroupChoice& choice) {
  if (choice.groups == 1) return;
  choice.every_steps = static_cast<int>(question.spec->averaging().every_steps());
  if (choice.every_steps > 0) return;
  const std::optional<double> steps = StepsOfTraining(question, choice);
  const int64_t most =
      steps ? MostStepsBetweenAverages(*steps, choice.groups, IntervalBound::kYu) : 1;
  int64_t largest = 1;
  while (largest * 2 <= most) largest *= 2;
  const double shortest =
      choice.step_seconds + choice.averaging_seconds / static_cast<double>(largest);
  choice.every_steps = 1;
  while (choice.every_steps < largest && choice.seconds_per_step() > shortest * (1 + kLittle)) {
    choice.every_steps *= 2;
  }
}

// Errors: OutOfRange where the table does not say, or says never.
absl::Status AddEpochs(const GroupsQuestion& question, const EpochsCurve& curve,
                       GroupChoice& choice) {
  const double workers =
      static_cast<double>(BatchOf(question) * choice.groups) / question.epochs->batch_per_worker();
  CADRE_ASSIGN_OR_RETURN(const double epochs, curve.At(workers));
  if (!std::isfinite(epochs)) {
    return absl::OutOfRangeError(absl::StrFormat("batches of %d samples did not reach the target",
                                                 BatchOf(question) * choice.groups));
  }
  choice.epochs = epochs;
  return absl::OkStatus();
}

void AddTimes(const GroupsQuestion& question, GroupChoice& choice) {
  const auto samples = static_cast<double>(BatchOf(question) * choice.groups);
  choice.seconds_per_sample = choice.seconds_per_step() / samples;
  choice.seconds_per_epoch = StepsOfPass(question, choice.groups) * choice.seconds_per_step();
  if (choice.epochs && choice.seconds_per_epoch > 0) {
    choice.seconds_to_target = TimeToAccuracy(choice.seconds_per_step(),
                                              StepsOfPass(question, choice.groups), *choice.epochs);
  }
}

// --- all of it ---

absl::StatusOr<GroupChoice> ChoiceOf(const GroupsQuestion& question, const EpochsCurve* curve,
                                     const LinkProfile& across, int groups) {
  GroupChoice choice{.groups = groups, .ranks = question.workers / groups};
  // What the table does not know needs no planning.
  if (curve != nullptr) CADRE_RETURN_IF_ERROR(AddEpochs(question, *curve, choice));
  if (question.samples > 0 && StepsOfPass(question, groups) < 1) {
    return absl::OutOfRangeError(absl::StrFormat("a pass of %.0f samples is not one step of %d",
                                                 question.samples, BatchOf(question) * groups));
  }
  CADRE_RETURN_IF_ERROR(PlanSlowest(question, choice));
  AddAveraging(question, across, choice);
  ChooseInterval(question, choice);
  AddTimes(question, choice);
  return choice;
}

// What is made least.
double Cost(const GroupChoice& choice) {
  return choice.seconds_to_target.value_or(
      choice.seconds_per_epoch > 0 ? choice.seconds_per_epoch : choice.seconds_per_sample);
}

std::string Named(const GroupChoice& choice) {
  return absl::StrCat(choice.groups, choice.groups == 1 ? " group of " : " groups of ",
                      choice.ranks);
}

void Explain(const GroupsQuestion& question, GroupsAnswer& answer) {
  const GroupChoice& best = answer.best();
  const bool by_target = best.seconds_to_target.has_value();
  answer.why =
      absl::StrCat(Named(best), by_target ? ": soonest at the target" : ": the shortest pass");
  for (const GroupChoice& other : answer.choices) {
    if (other.groups <= best.groups) continue;
    if (!answer.more || other.groups < answer.more->groups) answer.more = other;
  }
  if (!answer.more) {
    absl::StrAppend(&answer.why, "; more groups were not possible");
    if (question.epochs == nullptr && question.most_groups == 0 && question.workers > 1) {
      absl::StrAppend(&answer.why, ": nobody says how many epochs they need");
    }
    return;
  }
  const GroupChoice& more = *answer.more;
  answer.more_takes = Cost(more) / Cost(best);
  absl::StrAppendFormat(
      &answer.why,
      "; %s would take %.3g times as long: %.3g times the steps of a pass, %.3g times the step",
      Named(more), answer.more_takes, static_cast<double>(best.groups) / more.groups,
      more.seconds_per_step() / best.seconds_per_step());
  if (!by_target) return;
  absl::StrAppendFormat(&answer.why, ", %.3g times the epochs", *more.epochs / *best.epochs);
  answer.crossover = best.ranks > 1;
  if (answer.crossover) {
    absl::StrAppendFormat(&answer.why,
                          ": from %d on it pays more that %d ranks share a group's step",
                          best.groups, best.ranks);
  }
}

}  // namespace

absl::StatusOr<GroupsAnswer> ChooseGroups(const GroupsQuestion& question) {
  CADRE_RETURN_IF_ERROR(CheckPins(question));
  std::optional<EpochsCurve> curve;
  if (question.epochs != nullptr) {
    if (question.epochs->batch_per_worker() == 0) {
      return absl::InvalidArgumentError("the table of epochs has batch_per_worker 0");
    }
    if (!(question.samples > 0)) {
      return absl::InvalidArgumentError(
          "a table of epochs says nothing without the samples of a pass");
    }
    CADRE_ASSIGN_OR_RETURN(curve, EpochsCurve::FromTable(*question.epochs));
  }
  CADRE_ASSIGN_OR_RETURN(const LinkProfile across, LinkAcross(question));
  GroupsAnswer answer;
  absl::Status first;
  for (const int groups : NumbersOfGroups(question)) {
    absl::StatusOr<GroupChoice> choice =
        ChoiceOf(question, curve ? &*curve : nullptr, across, groups);
    if (choice.ok()) {
      answer.choices.push_back(*std::move(choice));
      continue;
    }
    if (first.ok()) first = choice.status();
    answer.refused.push_back(
        {groups, question.workers / groups, std::string(choice.status().message())});
  }
  if (answer.choices.empty()) return first;
  std::stable_sort(answer.choices.begin(), answer.choices.end(),
                   [](const auto& a, const auto& b) { return Cost(a) < Cost(b); });
  Explain(question, answer);
  return answer;
}

}  // namespace cadre
