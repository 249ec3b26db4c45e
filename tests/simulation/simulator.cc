#include "tests/simulation/simulator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "coordinator/keys.h"
#include "coordinator/run_rules.h"
#include "proto/enum_text.h"

namespace cadre::simulation {
namespace {

constexpr uint64_t kSchema = 0xcad7e;
// What the longest of the runs here needs when nothing goes wrong is a few minutes; this leaves
// room for all of them one after the other.
constexpr absl::Duration kPatience = absl::Minutes(30);
// A simulation that does not come to an end by then has gone astray.
constexpr uint64_t kMaxEvents = 5'000'000;

absl::StatusOr<v1::Plan> PlanOf(const v1::RunSpec& spec, int ranks) {
  const auto model = static_cast<int>(std::max(1U, spec.cluster().model_ranks()));
  if (ranks % model != 0 && ranks > 1) return absl::InvalidArgumentError("not to be divided");
  v1::Plan plan;
  v1::MeshAxis& axis = *plan.add_mesh();
  axis.set_name("data");
  axis.set_size(static_cast<uint32_t>(ranks));
  return plan;
}

// Two plans, whose steps take what layers were measured to take last: the one twice that, so that
// groups that were measured to be slow are planned anew.
class SimulatedPlanning final : public Planning {
 public:
  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanQuery& question) const override {
    auto plan = PlanOf(*question.spec, static_cast<int>(question.ranks.size()));
    if (!plan.ok()) return plan.status();
    if (question.times.empty()) return std::vector<GroupPlan>{{.plan = *plan}};
    GroupPlan other{.plan = *plan};
    other.plan.mutable_mesh(0)->set_name("model");
    other.predicted = TimesOf(question, other.plan);
    return std::vector<GroupPlan>{other, {.plan = *plan, .predicted = TimesOf(question, *plan)}};
  }
  absl::StatusOr<v1::StepTimes> Predict(const PlanQuery& question,
                                        const v1::Plan& plan) const override {
    if (question.times.empty()) return absl::FailedPreconditionError("nothing was measured");
    return TimesOf(question, plan);
  }
  std::string KeyOf(const v1::Model&) const override { return "model"; }
  std::vector<std::string> LayersOf(const v1::Model&) const override { return {"fc1"}; }

 private:
  static v1::StepTimes TimesOf(const PlanQuery& question, const v1::Plan& plan) {
    v1::StepTimes times;
    times.set_step(question.times[0].times().time(0).forward() *
                   (plan.mesh(0).name() == "data" ? 2 : 1));
    return times;
  }
};

const Planning& ThePlanning() {
  static const SimulatedPlanning* const planning = new SimulatedPlanning;
  return *planning;
}

// What the coordinator has counted.
void AddCounters(const std::map<std::string, std::string>& store, World& world) {
  v1::MetaRecord meta;
  const auto it = store.find(kMetaKey);
  if (it == store.end() || !meta.ParseFromString(it->second)) return;
  for (const auto& [name, value] : meta.counters()) world.Count(name, value);
}

// Every tenth world has the usual limit of failures; in the others runs must always come through.
bool MayFail(uint64_t seed) { return seed % 10 == 9; }

Machine::Options MachineOptions(uint64_t seed) {
  Machine::Options options;
  options.plan = PlanOf;
  options.planning = &ThePlanning();
  options.schema_hash = kSchema;
  options.version = "simulation";
  if (!MayFail(seed)) options.max_group_failures = 1'000'000;
  return options;
}

}  // namespace

Simulator::Simulator(const SimulatorOptions& options)
    : world_(options.seed),
      faults_for_(options.faults_for > absl::ZeroDuration()
                      ? options.faults_for
                      : world_.dice.Between(absl::Seconds(60), absl::Seconds(300))),
      network_(world_),
      fabrics_(world_),
      invariants_(world_, MayFail(options.seed),
                  [this](const std::string& name, const ContributionKey& key) {
                    return std::any_of(
                        aggregators_.begin(), aggregators_.end(), [&](const auto& aggregator) {
                          return aggregator->name() == name && aggregator->HasContribution(key);
                        });
                  }),
      coordinator_(world_, network_, invariants_, MachineOptions(options.seed)) {
  world_.plant = options.plant;
  world_.listener = options.on_line;
}

// ---- The cluster

void Simulator::ChooseFaults() {
  Dice& dice = world_.dice;
  Faults& faults = world_.faults;
  // Some worlds have no faults of a kind, so that the others get further.
  const auto maybe = [&](double most) {
    return dice.Chance(0.3) ? 0.0 : most * static_cast<double>(dice.Between(1, 100)) / 100;
  };
  faults.break_stream = maybe(0.02);
  faults.break_call = maybe(0.08);
  faults.crash_before_commit = maybe(0.01);
  faults.crash_after_commit = maybe(0.01);
  faults.stall = maybe(0.003);
  faults.full_disk = maybe(0.1);
  faults.crash_aggregator = maybe(0.02);
  faults.break_group = maybe(0.001);
  faults.delay = dice.Between(absl::Milliseconds(2), absl::Milliseconds(300));
  faults.slow_message = maybe(0.02);
  between_ = dice.Between(absl::Seconds(4), absl::Seconds(30));
}

void Simulator::MakeMembers() {
  Dice& dice = world_.dice;
  const uint64_t aggregators = dice.Between(1, 3);
  for (uint64_t i = 0; i < aggregators; ++i) {
    aggregators_.push_back(std::make_unique<SimulatedAggregator>(world_, network_, invariants_,
                                                                 absl::StrCat("a", i), kSchema));
  }
  const uint64_t workers = dice.Between(2, 9);
  max_ranks_ = static_cast<uint32_t>(std::min<uint64_t>(workers, 3));
  for (uint64_t i = 0; i < workers; ++i) {
    // Some are ten times slower than others.
    const absl::Duration step = dice.Chance(0.2)
                                    ? dice.Between(absl::Milliseconds(500), absl::Seconds(1))
                                    : dice.Between(absl::Milliseconds(50), absl::Milliseconds(300));
    workers_.push_back(std::make_unique<SimulatedWorker>(world_, network_, fabrics_, aggregators_,
                                                         invariants_, absl::StrCat("w", i), kSchema,
                                                         step));
  }
  for (auto& member : aggregators_) {
    world_.timeline.After(dice.Between(absl::ZeroDuration(), absl::Seconds(5)),
                          [m = member.get()] { m->Start(/*move=*/false); });
  }
  for (auto& member : workers_) {
    world_.timeline.After(dice.Between(absl::ZeroDuration(), absl::Seconds(10)),
                          [m = member.get()] { m->Start(); });
  }
}

v1::RunSpec Simulator::MakeSpec() {
  Dice& dice = world_.dice;
  const auto throw_between = [&](uint64_t low, uint64_t high) {
    return static_cast<uint32_t>(dice.Between(low, high));
  };
  v1::RunSpec spec;
  spec.set_name("simulated");
  spec.mutable_model()->mutable_input()->set_channels(1);
  spec.mutable_model()->mutable_input()->set_height(1);
  spec.mutable_model()->mutable_input()->set_width(3);
  for (const char* name : {"fc1", "fc2"}) {
    v1::Layer& layer = *spec.mutable_model()->add_layer();
    layer.set_name(name);
    layer.mutable_fully_connected()->set_out_features(3);
  }
  v1::Layer& loss = *spec.mutable_model()->add_layer();
  loss.set_name("loss");
  loss.mutable_softmax_cross_entropy();
  spec.mutable_data()->mutable_synthetic()->set_train_samples(throw_between(50, 400));
  spec.mutable_data()->mutable_synthetic()->set_test_samples(throw_between(1, 50));
  spec.set_batch_per_group(throw_between(1, 16));
  spec.set_seed(dice.Bits());
  const bool averages = !dice.Chance(0.15);
  v1::Cluster& cluster = *spec.mutable_cluster();
  cluster.set_groups(averages ? throw_between(1, 4) : 1);
  cluster.set_ranks_per_group(throw_between(1, max_ranks_));
  cluster.set_min_ranks_per_group(throw_between(1, cluster.ranks_per_group()));
  if (cluster.ranks_per_group() == 2 && dice.Chance(0.3)) cluster.set_model_ranks(2);
  cluster.set_rejoin_wait_ms(throw_between(500, 8000));
  if (dice.Chance(0.5)) cluster.set_aggregators(throw_between(1, aggregators_.size()));
  v1::Averaging& averaging = *spec.mutable_averaging();
  averaging.set_every_steps(averages ? throw_between(1, 6) : 0);
  if (cluster.groups() > 1 && dice.Chance(0.5)) {
    averaging.set_quorum(throw_between(1, cluster.groups()));
    averaging.set_min_grace_ms(throw_between(200, 4000));
  }
  if (dice.Chance(0.4)) averaging.set_max_solo_steps(throw_between(1, 10));
  spec.mutable_stop()->set_steps(throw_between(5, 60));
  if (dice.Chance(0.3)) spec.mutable_stop()->set_epochs(throw_between(1, 10));
  spec.mutable_evaluation()->set_every_epochs(throw_between(1, 3));
  return spec;
}

// Somebody who wants a run asks until there is an answer, as anybody would.
void Simulator::Submit(const v1::RunSpec& spec) {
  auto answered = std::make_shared<bool>(false);
  coordinator_.Submit(spec, [this, answered](const std::string& run) {
    *answered = true;
    ++runs_submitted_;
    world_.Log("user  has submitted ", run);
    if (healed_ || !world_.dice.Chance(0.05)) return;
    world_.timeline.After(world_.dice.Between(absl::Seconds(1), absl::Seconds(60)),
                          [this, run] { coordinator_.StopRun(run); });
  });
  world_.timeline.After(absl::Seconds(5), [this, spec, answered] {
    if (!*answered) Submit(spec);
  });
}

// ---- Mischief

void Simulator::ScheduleMischief() {
  world_.timeline.After(world_.dice.Between(absl::Milliseconds(100), 2 * between_), [this] {
    if (healed_) return;
    DoMischief();
    ScheduleMischief();
  });
}

void Simulator::ScheduleTraces() {
  world_.timeline.After(world_.dice.Between(absl::Milliseconds(500), absl::Seconds(20)), [this] {
    if (healed_) return;
    TraceSomething();
    ScheduleTraces();
  });
}

void Simulator::TraceSomething() {
  std::vector<v1::RunRecord> runs;
  for (auto it = coordinator_.store().lower_bound(kRunPrefix);
       it != coordinator_.store().end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    runs.emplace_back().ParseFromString(it->second);
  }
  if (runs.empty()) return;
  Dice& dice = world_.dice;
  const v1::RunRecord& run = runs[dice.Between(0, runs.size() - 1)];
  const auto group = static_cast<uint32_t>(dice.Between(0, GroupsOf(run.spec()) - 1));
  coordinator_.TraceGroup(run.run(), group, static_cast<uint32_t>(dice.Between(1, 5)),
                          dice.Chance(0.5)
                              ? absl::InfiniteDuration()
                              : dice.Between(absl::Milliseconds(100), absl::Seconds(10)));
}

void Simulator::DoMischief() {
  const uint64_t what = world_.dice.Between(0, 9);
  if (what <= 1) {
    coordinator_.Crash();
  } else if (what <= 4) {
    KillWorker();
  } else if (what <= 6) {
    KillAggregator();
  } else if (what <= 8) {
    BreakOneStream();
  } else {
    network_.BreakAny();
  }
}

void Simulator::KillWorker() {
  SimulatedWorker* const worker = workers_[world_.dice.Between(0, workers_.size() - 1)].get();
  if (world_.dice.Chance(0.2)) {
    worker->Leave();
  } else {
    worker->Kill(/*host_lost=*/world_.dice.Chance(0.3));
  }
  // Some stay away until the end of all mischief.
  if (world_.dice.Chance(0.3)) return;
  world_.timeline.After(world_.dice.Between(absl::Milliseconds(200), absl::Seconds(40)),
                        [worker] { worker->Start(); });
}

void Simulator::KillAggregator() {
  SimulatedAggregator* const aggregator =
      aggregators_[world_.dice.Between(0, aggregators_.size() - 1)].get();
  aggregator->Kill(/*host_lost=*/world_.dice.Chance(0.3));
  world_.timeline.After(world_.dice.Between(absl::Milliseconds(200), absl::Seconds(30)),
                        [this, aggregator] { aggregator->Start(world_.dice.Chance(0.3)); });
}

// From the coordinator, and sometimes from the others too; often for longer than the lease.
void Simulator::BreakOneStream() {
  const uint64_t which = world_.dice.Between(0, workers_.size() + aggregators_.size() - 1);
  const std::string host = which < workers_.size() ? workers_[which]->name()
                                                   : aggregators_[which - workers_.size()]->name();
  network_.Cut(host, world_.dice.Between(absl::Seconds(1), absl::Seconds(30)),
               /*bulk=*/world_.dice.Chance(0.4));
}

void Simulator::Heal() {
  world_.Log("world heals");
  healed_ = true;
  world_.faults = Faults();
  network_.HealAll();
  for (auto& aggregator : aggregators_) aggregator->Start(/*move=*/false);
  for (auto& worker : workers_) worker->Start();
}

// ---- The course of time

bool Simulator::AllEnded() const {
  if (runs_submitted_ < runs_wanted_) return false;
  for (auto it = coordinator_.store().lower_bound(kRunPrefix);
       it != coordinator_.store().end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    v1::RunRecord record;
    record.ParseFromString(it->second);
    if (IsLive(record.state())) return false;
  }
  return true;
}

void Simulator::ReportStuck() {
  std::string why;
  if (coordinator_.machine() != nullptr) {
    const v1::StatusReply status = coordinator_.machine()->Status(world_.timeline.now());
    for (const v1::RunStatus& run : status.runs()) {
      absl::StrAppend(&why, "; ", run.run(), " ", EnumText(run.state()), " version ", run.version(),
                      " step ", run.step(), " of ", run.total_steps(), " ", run.reason());
    }
    for (const v1::GroupStatus& group : status.groups()) {
      absl::StrAppend(&why, "; group ", group.group(), " of ", group.run(), " #",
                      group.generation(), " ", EnumText(group.state()), " ", group.reason());
    }
  }
  world_.Violate("nothing goes wrong any more, but not every run has ended", why);
}

Outcome Simulator::Run() {
  ChooseFaults();
  MakeMembers();
  coordinator_.Start();
  runs_wanted_ = world_.dice.Between(1, 3);
  for (size_t i = 0; i < runs_wanted_; ++i) {
    const v1::RunSpec spec = MakeSpec();
    world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), faults_for_ / 2),
                          [this, spec] { Submit(spec); });
  }
  ScheduleMischief();
  ScheduleTraces();
  world_.timeline.After(faults_for_, [this] { Heal(); });

  Outcome outcome;
  bool ended = false;
  uint64_t transactions = 0;
  while (!world_.violation && !ended) {
    if (!world_.timeline.Step()) break;
    ++outcome.events;
    invariants_.Check();
    if (healed_ && transactions != world_.counters["transactions"]) {
      transactions = world_.counters["transactions"];
      ended = AllEnded();
    }
    if (ended) break;
    const bool late = world_.timeline.elapsed() > faults_for_ + kPatience;
    if (late || outcome.events > kMaxEvents) ReportStuck();
  }
  // Whoever waits for a trace of a run that has ended has been told so.
  if (!world_.violation && coordinator_.traces_waiting() > 0) {
    world_.Violate(coordinator_.traces_waiting(), " calls for a trace are forgotten");
  }
  if (!world_.violation) {
    invariants_.CheckEnd(coordinator_.store(),
                         [this](const std::string& name, const std::string& run) {
                           for (const auto& aggregator : aggregators_) {
                             if (aggregator->name() == name) return aggregator->VersionOnDisk(run);
                           }
                           return std::optional<uint32_t>();
                         });
  }
  AddCounters(coordinator_.store(), world_);
  outcome.violation = world_.violation.value_or("");
  outcome.at = world_.timeline.elapsed();
  outcome.last_lines.assign(world_.last_lines.begin(), world_.last_lines.end());
  outcome.counters = world_.counters;
  outcome.log_hash = world_.log_hash;
  return outcome;
}

}  // namespace cadre::simulation
