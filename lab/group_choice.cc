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
//            H > 1 is proved only up to an order of magnitude (plan/cost/discrepancy.h), so
//            H stays within the stricter of the two bounds (Yu, Yang, Zhu 2019), and is no larger
//            than needed to make averaging cheap.
//   average  each rank sends its n / p words to the aggregators and receives as many (Lee et al.
//            2020), in the codecs of the run, over the slowest link between groups, without other
//            traffic, since all groups wait for the round. If the spec states the number of
//            aggregators, the slices of all groups share the aggregators' links, and the slower of
//            the two limits counts. If averages overlap s steps, groups wait only for what takes
//            longer than s steps; that the exchange slows these down is not modeled.
//
// Workers are assigned to groups host by host in the profile's order, and the slowest group
// determines the step. Groups on equal hosts are of one kind and are planned once; at most
// kMaxPlanned kinds are planned, those that a rough estimate finds slowest. Cost: one search per
// divisor of P and kind of group.
#include "lab/group_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/counted_noun.h"
#include "base/status.h"
#include "lab/round_traffic.h"
#include "lab/time_to_accuracy.h"
#include "plan/cost/communication_cost.h"
#include "plan/cost/discrepancy.h"
#include "plan/cost/group_hybrid.h"
#include "plan/search/search.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// At most so many kinds of groups are examined, and those that a rough estimate finds slowest are
// planned. Kinds are few unless every link was measured separately.
constexpr size_t kMaxKinds = 64;
constexpr size_t kMaxPlanned = 6;
// A longer interval is not worth the divergence if it saves less than this part of the time.
constexpr double kMinSaving = 0.01;

int WorkersOf(const PlanQuestion& question) { return question.problem.ranks; }
int64_t BatchOf(const PlanQuestion& question) { return question.problem.batch; }

// Possible numbers of groups, ascending.
std::vector<int> NumbersOfGroups(const PlanQuestion& question) {
  const int max_groups = question.request.max_groups.value_or(0);
  std::vector<int> numbers;
  for (const int groups : DivisorsOf(WorkersOf(question))) {
    const bool by_default = groups == 1 || question.request.epochs;
    if (max_groups > 0 ? groups <= max_groups : by_default) numbers.push_back(groups);
  }
  return numbers;
}

// --- Groups on equal hosts ---

// The hosts of one entry of the profile.
struct Entry {
  // Workers of all its hosts.
  Interval workers;
  int64_t workers_per_host = 1;
  // Equal for entries with equal hosts.
  int64_t host_kind = 0;
};

std::vector<Entry> EntriesOf(const v1::ClusterProfile& profile) {
  std::vector<Entry> entries;
  std::map<std::string, int64_t> host_kinds;
  int64_t begin = 0;
  for (const v1::HostProfile& host : profile.host()) {
    v1::HostProfile kind = host;
    kind.clear_name();
    kind.clear_count();
    const auto found = host_kinds.emplace(kind.SerializeAsString(), std::ssize(host_kinds)).first;
    const int64_t workers = std::max(1U, host.workers());
    const int64_t end = begin + workers * std::max(1U, host.count());
    entries.push_back({{begin, end}, workers, found->second});
    begin = end;
  }
  return entries;
}

// Equal for groups of one kind. A group within one host depends only on the kind of host; otherwise
// the key lists, for each entry that the group uses, the entry, its first worker's position in a
// host, and its number of ranks there.
std::vector<int64_t> KeyOf(const std::vector<Entry>& entries, int64_t first, int64_t ranks) {
  auto entry = std::upper_bound(entries.begin(), entries.end(), first,
                                [](int64_t w, const Entry& e) { return w < e.workers.end; });
  const Interval group = {first, first + ranks};
  const auto host = [&](int64_t worker) {
    return (worker - entry->workers.begin) / entry->workers_per_host;
  };
  if (entry->workers.contains(group) && host(first) == host(group.end - 1)) {
    return {-1, entry->host_kind};
  }
  std::vector<int64_t> key;
  for (; entry != entries.end() && entry->workers.begin < group.end; ++entry) {
    const Interval here = Intersect(group, entry->workers);
    key.insert(key.end(),
               {entry - entries.begin(),
                (here.begin - entry->workers.begin) % entry->workers_per_host, here.size()});
  }
  return key;
}

// --- The step of a group ---

// A rough estimate for comparison: computing, and one all-reduce.
double RoughSeconds(const PlanQuestion& question, const HardwareModel& hardware, int ranks) {
  double flops = 0;
  for (const GraphLayer& layer : question.graph.layers()) flops += layer.flops;
  const double words = AllReduce(question.index.size(), ranks).words;
  const double computing = hardware.flops > 0 ? flops / hardware.flops : 0;
  return 3 * computing * BatchOf(question) / ranks + hardware.link.beta * kBytesPerWord * words;
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
absl::StatusOr<std::vector<KindOfHardware>> HardwareOfGroups(const PlanQuestion& question,
                                                             int groups, int ranks) {
  const PlanRequest& request = question.request;
  std::vector<KindOfHardware> kinds_of_hardware;
  if (!request.profile) return std::vector<KindOfHardware>{{question.problem.hardware}};
  std::vector<GroupKind> kinds = KindsOfGroups(*request.profile, groups, ranks);
  kinds.resize(std::min(kinds.size(), kMaxKinds));
  for (const GroupKind& kind : kinds) {
    CADRE_ASSIGN_OR_RETURN(HardwareModel hardware,
                           HardwareOf(*request.profile, request.spec.model(), question.graph,
                                      kind.first_worker, ranks));
    const bool known = std::any_of(
        kinds_of_hardware.begin(), kinds_of_hardware.end(),
        [&](const auto& other) { return NumbersOf(other.hardware) == NumbersOf(hardware); });
    if (known) continue;
    const double rough = RoughSeconds(question, hardware, ranks);
    kinds_of_hardware.push_back({std::move(hardware), rough});
  }
  std::stable_sort(kinds_of_hardware.begin(), kinds_of_hardware.end(),
                   [](const auto& a, const auto& b) { return a.rough > b.rough; });
  kinds_of_hardware.resize(std::min(kinds_of_hardware.size(), kMaxPlanned));
  return kinds_of_hardware;
}

// Fills in step, mesh and slowest group.
absl::Status PlanSlowest(const PlanQuestion& question, GroupChoice& choice) {
  CADRE_ASSIGN_OR_RETURN(std::vector<KindOfHardware> kinds_of_hardware,
                         HardwareOfGroups(question, choice.groups, choice.ranks));
  choice.step_seconds = -1;
  for (KindOfHardware& kind : kinds_of_hardware) {
    CADRE_ASSIGN_OR_RETURN(PlanProblem group,
                           ProblemOf(question.request.spec, question.graph, question.index,
                                     choice.ranks, std::move(kind.hardware)));
    if (!group.hardware.computes()) group.overlap = false;
    CADRE_ASSIGN_OR_RETURN(const SearchResult found, Search(group));
    if (found.best.prediction.times.step() <= choice.step_seconds) continue;
    choice.step_seconds = found.best.prediction.times.step();
    choice.mesh = found.best.plan.mesh;
  }
  return absl::OkStatus();
}

// --- Averaging ---

void AddAveraging(const PlanQuestion& question, GroupChoice& choice) {
  if (choice.groups == 1) return;
  // The slowest link between any two workers.
  const LinkProfile& link = question.problem.hardware.link;
  const v1::RunSpec& spec = question.request.spec;
  const RoundTraffic traffic = RoundTrafficOf(spec.averaging(), question.index);
  choice.bytes_up = choice.groups * traffic.bytes_up;
  choice.bytes_down = choice.groups * traffic.bytes_down;
  const double rank_bytes = 1.0 * traffic.bytes() / choice.ranks;
  const uint32_t shards = spec.cluster().aggregators();
  const double shard_bytes = shards > 0 ? 1.0 * choice.bytes_per_average() / shards : 0;
  choice.averaging_seconds = 2 * link.alpha + link.beta * std::max(rank_bytes, shard_bytes);
  const double hidden = spec.averaging().overlap().steps() * choice.step_seconds;
  choice.exposed_seconds = std::max(0.0, choice.averaging_seconds - hidden);
}

// --- Statistics ---

// Steps of an epoch, each on one batch of every group.
double EpochSteps(const PlanQuestion& question, int groups) {
  return StepsPerEpoch(question.request.samples.value_or(0), BatchOf(question) * groups);
}

// Steps of the whole training; nullopt if unknown.
std::optional<double> StepsOfTraining(const PlanQuestion& question, const GroupChoice& choice) {
  const v1::Stop& stop = question.request.spec.stop();
  const double pass = EpochSteps(question, choice.groups);
  if (choice.epochs && pass > 0) return *choice.epochs * pass;
  if (stop.steps() > 0) return stop.steps();
  if (stop.epochs() > 0 && pass > 0) return stop.epochs() * pass;
  return std::nullopt;
}

// Chooses the smallest H of 1, 2, 4, ... with which a step takes nearly as little time as with the
// largest H within the bound.
void ChooseInterval(const PlanQuestion& question, GroupChoice& choice) {
  if (choice.groups == 1) return;
  choice.every_steps = question.request.spec.averaging().every_steps();
  if (choice.every_steps > 0) return;
  const std::optional<double> steps = StepsOfTraining(question, choice);
  const int64_t max_steps =
      steps ? MaxStepsBetweenAverages(*steps, choice.groups, IntervalBound::kYu) : 1;
  int64_t largest = 1;
  while (largest * 2 <= max_steps) largest *= 2;
  const double shortest = choice.step_seconds + choice.exposed_seconds / largest;
  choice.every_steps = 1;
  while (choice.every_steps < largest && choice.seconds_per_step() > shortest * (1 + kMinSaving)) {
    choice.every_steps *= 2;
  }
}

// Errors: OutOfRange if the table does not cover the batch, or the target was not reached with it.
absl::Status AddEpochs(const PlanQuestion& question, const EpochsCurve& curve,
                       GroupChoice& choice) {
  const double workers =
      1.0 * BatchOf(question) * choice.groups / question.request.epochs->batch_per_worker();
  CADRE_ASSIGN_OR_RETURN(const double epochs, curve.At(workers));
  if (!std::isfinite(epochs)) {
    return absl::OutOfRangeError(absl::StrFormat("batches of %d samples did not reach the target",
                                                 BatchOf(question) * choice.groups));
  }
  choice.epochs = epochs;
  return absl::OkStatus();
}

void AddTimes(const PlanQuestion& question, GroupChoice& choice) {
  const int64_t samples = BatchOf(question) * choice.groups;
  choice.seconds_per_sample = choice.seconds_per_step() / samples;
  choice.seconds_per_epoch = EpochSteps(question, choice.groups) * choice.seconds_per_step();
  if (choice.epochs && choice.seconds_per_epoch > 0) {
    choice.seconds_to_target = TimeToAccuracy(choice.seconds_per_step(),
                                              EpochSteps(question, choice.groups), *choice.epochs);
  }
}

// --- Result ---

absl::StatusOr<GroupChoice> ChoiceOf(const PlanQuestion& question,
                                     const std::optional<EpochsCurve>& curve, int groups) {
  const double samples = question.request.samples.value_or(0);
  GroupChoice choice{.groups = groups, .ranks = WorkersOf(question) / groups};
  // Checked before planning, which takes longer.
  if (curve) CADRE_RETURN_IF_ERROR(AddEpochs(question, *curve, choice));
  if (samples > 0 && EpochSteps(question, groups) < 1) {
    return absl::OutOfRangeError(
        absl::StrFormat("an epoch of %.0f samples has less than one step of %d", samples,
                        BatchOf(question) * groups));
  }
  CADRE_RETURN_IF_ERROR(PlanSlowest(question, choice));
  AddAveraging(question, choice);
  ChooseInterval(question, choice);
  AddTimes(question, choice);
  return choice;
}

// The quantity that is minimised.
double Cost(const GroupChoice& choice) {
  return choice.seconds_to_target.value_or(
      choice.seconds_per_epoch > 0 ? choice.seconds_per_epoch : choice.seconds_per_sample);
}

std::string GroupsText(const GroupChoice& choice) {
  return absl::StrCat(Counted(choice.groups, "group"), " of ", choice.ranks);
}

void Explain(const PlanQuestion& question, GroupsResult& answer) {
  const GroupChoice& best = answer.best();
  const bool by_target = best.seconds_to_target.has_value();
  answer.reason = absl::StrCat(
      GroupsText(best), by_target ? ": minimum time to the target" : ": minimum time per epoch");
  for (const GroupChoice& other : answer.choices) {
    if (other.groups <= best.groups) continue;
    if (!answer.more || other.groups < answer.more->groups) answer.more = other;
  }
  if (!answer.more) {
    absl::StrAppend(&answer.reason, "; more groups were not possible");
    if (!question.request.epochs && question.request.max_groups.value_or(0) == 0 &&
        WorkersOf(question) > 1) {
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
      GroupsText(more), answer.more_time_ratio, 1.0 * best.groups / more.groups,
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

std::vector<GroupKind> KindsOfGroups(const v1::ClusterProfile& profile, int64_t groups,
                                     int64_t ranks) {
  const std::vector<Entry> entries = EntriesOf(profile);
  std::map<std::vector<int64_t>, size_t> seen;
  std::vector<GroupKind> kinds;
  for (int64_t g = 0; g < groups; ++g) {
    const auto [kind, is_new] = seen.emplace(KeyOf(entries, g * ranks, ranks), kinds.size());
    if (is_new) kinds.emplace_back().first_worker = g * ranks;
    ++kinds[kind->second].groups;
  }
  return kinds;
}

absl::StatusOr<GroupsResult> ChooseGroups(const PlanQuestion& question) {
  std::optional<EpochsCurve> curve;
  if (question.request.epochs) {
    if (!(question.request.samples.value_or(0) > 0)) {
      return absl::InvalidArgumentError(
          "a table of epochs requires the number of samples per epoch");
    }
    CADRE_ASSIGN_OR_RETURN(curve, EpochsCurve::FromTable(*question.request.epochs));
  }
  GroupsResult answer;
  absl::Status first;
  for (const int groups : NumbersOfGroups(question)) {
    absl::StatusOr<GroupChoice> choice = ChoiceOf(question, curve, groups);
    if (choice.ok()) {
      answer.choices.push_back(*std::move(choice));
      continue;
    }
    if (first.ok()) first = choice.status();
    answer.rejected.push_back(
        {groups, WorkersOf(question) / groups, std::string(choice.status().message())});
  }
  if (answer.choices.empty()) return first;
  std::stable_sort(answer.choices.begin(), answer.choices.end(),
                   [](const auto& a, const auto& b) { return Cost(a) < Cost(b); });
  Explain(question, answer);
  return answer;
}

}  // namespace cadre
