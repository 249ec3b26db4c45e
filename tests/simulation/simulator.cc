#include "tests/simulation/simulator.h"

#include <glog/logging.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/match.h"
#include "base/protocol.h"
#include "coordinator/cluster/standing.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "proto/enum_text.h"

namespace cadre::simulation {
namespace {

// Time limit of all runs after the last fault: a worker that was repaired may be in quarantine for
// an hour. Without faults, the longest run takes a few minutes.
const absl::Duration kRecoveryLimit = kQuarantine + absl::Minutes(30);
// Maximum number of events of one simulation, which only a simulation without end reaches.
constexpr uint64_t kMaxEvents = 5'000'000;
constexpr size_t kLastLines = 80;

absl::StatusOr<v1::Plan> PlanOf(const v1::RunSpec& spec, int ranks) {
  const int model = std::max(1U, spec.cluster().model_ranks());
  if (ranks % model != 0 && ranks > 1)
    return absl::InvalidArgumentError("the ranks are not a multiple of model_ranks");
  v1::Plan plan;
  v1::MeshAxis& axis = *plan.add_mesh();
  axis.set_name("data");
  axis.set_size(ranks);
  return plan;
}

// Two plans whose predicted step times are the newest measured layer time and twice that time, so
// that groups with slow measurements change their plans.
class SimulatedPlanning final : public Planning {
 public:
  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanQuery& query) const override {
    auto plan = PlanOf(query.spec, query.ranks.size());
    if (!plan.ok()) return plan.status();
    if (query.times.empty()) return std::vector<GroupPlan>{{.plan = *plan}};
    GroupPlan other{.plan = *plan};
    other.plan.mutable_mesh(0)->set_name("model");
    other.predicted = TimesOf(query, other.plan);
    return std::vector<GroupPlan>{other, {.plan = *plan, .predicted = TimesOf(query, *plan)}};
  }
  absl::StatusOr<v1::StepTimes> Predict(const PlanQuery& query,
                                        const v1::Plan& plan) const override {
    if (query.times.empty()) return absl::FailedPreconditionError("no measurements");
    return TimesOf(query, plan);
  }
  std::string KeyOf(const v1::Model&) const override { return "model"; }
  std::vector<std::string> LayersOf(const v1::Model&) const override { return {"fc1"}; }

 private:
  static v1::StepTimes TimesOf(const PlanQuery& query, const v1::Plan& plan) {
    v1::StepTimes times;
    times.set_step(query.times[0].times().time(0).forward() *
                   (plan.mesh(0).name() == "data" ? 2 : 1));
    return times;
  }
};

const Planning& ThePlanning() {
  static const SimulatedPlanning* const planning = new SimulatedPlanning;
  return *planning;
}

// Adds the counters of the coordinator.
void AddCounters(const std::map<std::string, std::string>& store, World& world) {
  v1::MetaRecord meta;
  const auto it = store.find(kMetaKey);
  if (it == store.end() || !meta.ParseFromString(it->second)) return;
  for (const auto& [name, value] : meta.counters()) world.Count(name, value);
}

Machine::Options MachineOptions(Dice& dice) {
  Machine::Options options;
  if (dice.Chance(0.3)) {
    options.aggregator_patience = dice.Between(absl::Seconds(20), absl::Minutes(2));
  }
  options.plan = PlanOf;
  options.planning = &ThePlanning();
  options.protocol = kProtocol;
  options.version = "simulation";
  return options;
}

// The means are those of all participants (invariants_values.cc), so clips and trims have no
// effect. One rule is so strict that it leaves out groups whose changes are not unusual.
void MakeScreen(Dice& dice, v1::Averaging& averaging) {
  v1::Screen& screen = *averaging.mutable_screen();
  switch (dice.Between(0, 15)) {
    case 0:
      screen.mutable_off();
      return;
    case 1:
      screen.mutable_clip()->set_ratio(1e6F);
      break;
    case 2:
      screen.mutable_trimmed_mean()->set_share(0.1F);
      break;
    case 3:
    case 4:
    case 5:
      screen.mutable_exclude()->set_ratio(1.3F);
      if (dice.Chance(0.5)) screen.mutable_exclude()->set_agreement(0.5F);
      break;
    default:
      averaging.clear_screen();
      return;
  }
  if (dice.Chance(0.3)) screen.set_max_ratio(2000);
}

}  // namespace

Simulator::Simulator(const SimulatorOptions& options)
    : options_(options),
      world_(options.seed),
      dice_(options.seed, Dice::Purpose::kCluster),
      faults_for_(options.faults_for > absl::ZeroDuration()
                      ? options.faults_for
                      : dice_.Between(absl::Seconds(60), absl::Seconds(300))),
      network_(world_),
      fabrics_(world_),
      invariants_(world_, [this] { return ConnectedWorkers(); }),
      coordinators_(world_, network_, invariants_, MachineOptions(dice_)),
      operators_(world_, coordinators_, invariants_, workers_, aggregators_),
      injector_(world_, network_, coordinators_, workers_, aggregators_),
      liveness_(world_, coordinators_, workers_, aggregators_, network_),
      loads_(world_, coordinators_, workers_, aggregators_) {
  world_.plant = options.plant;
  world_.listener = options.on_line;
}

// ---- The cluster

std::vector<v1::RunSpec> Simulator::Draw() {
  MakeMembers();
  runs_wanted_ = dice_.Between(1, 3);
  std::vector<v1::RunSpec> specs(runs_wanted_);
  for (v1::RunSpec& spec : specs) spec = MakeSpec();
  return specs;
}

void Simulator::MakeMembers() {
  Dice& dice = dice_;
  world_.faults.delay = dice.Between(absl::Milliseconds(2), absl::Milliseconds(300));
  const uint64_t aggregators = dice.Between(1, 3);
  for (uint64_t i = 0; i < aggregators; ++i) {
    aggregators_.push_back(std::make_unique<SimulatedAggregator>(
        world_, network_, invariants_, aggregators_, absl::StrCat("a", i)));
  }
  const uint64_t workers = dice.Between(2, 9);
  max_ranks_ = std::min<uint64_t>(workers, 3);
  world_.has_outer_runs = dice.Chance(0.2);
  for (uint64_t i = 0; i < workers; ++i) {
    // Some workers are ten times slower than others.
    const absl::Duration step = dice.Chance(0.2)
                                    ? dice.Between(absl::Milliseconds(500), absl::Seconds(1))
                                    : dice.Between(absl::Milliseconds(50), absl::Milliseconds(300));
    workers_.push_back(std::make_unique<SimulatedWorker>(world_, network_, fabrics_, aggregators_,
                                                         invariants_, absl::StrCat("w", i), step));
  }
  for (auto& member : aggregators_) {
    world_.timeline.After(dice.Between(absl::ZeroDuration(), absl::Seconds(5)),
                          [m = member.get()] { m->Start(/*move=*/false); });
  }
  for (auto& member : workers_) {
    world_.timeline.After(dice.Between(absl::ZeroDuration(), absl::Seconds(10)),
                          [m = member.get()] { m->Start(); });
  }
  world_.exchange_silence = dice.Between(absl::Seconds(15), absl::Seconds(60));
  if (dice.Chance(0.3)) world_.max_calls = static_cast<int>(dice.Between(1, 4));
  if (!dice.Chance(0.3)) return;
  intruder_.emplace(world_, network_, aggregators_);
  network_.set_listener([this](const v1::MemberMessage& message) { intruder_->Record(message); });
  world_.timeline.After(absl::Seconds(10), [this] { intruder_->Start(); });
}

v1::RunSpec Simulator::MakeSpec() {
  Dice& dice = dice_;
  const auto between = [&](uint64_t low, uint64_t high) -> uint32_t {
    return dice.Between(low, high);
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
  spec.mutable_data()->mutable_synthetic()->set_train_samples(between(50, 400));
  spec.mutable_data()->mutable_synthetic()->set_test_samples(between(1, 50));
  spec.set_batch_per_group(between(1, 16));
  spec.set_seed(dice.Bits());
  const bool averages = !dice.Chance(0.15);
  v1::Cluster& cluster = *spec.mutable_cluster();
  cluster.set_device(v1::Cluster::CPU);
  cluster.set_groups(averages ? between(1, 4) : 1);
  cluster.set_ranks_per_group(between(1, max_ranks_));
  cluster.set_min_ranks_per_group(between(1, cluster.ranks_per_group()));
  if (cluster.ranks_per_group() == 2 && dice.Chance(0.3)) cluster.set_model_ranks(2);
  cluster.set_rejoin_wait_ms(between(500, 8000));
  if (dice.Chance(0.5)) cluster.set_aggregators(between(1, aggregators_.size()));
  if (dice.Chance(0.2)) cluster.set_aggregator_wait_ms(between(10'000, 200'000));
  cluster.set_keep_plan(dice.Chance(0.2));
  *spec.mutable_averaging() = averages ? MakeAveraging(cluster) : v1::Averaging();
  spec.mutable_stop()->set_steps(between(5, 60));
  if (dice.Chance(0.3)) spec.mutable_stop()->set_epochs(between(1, 10));
  spec.mutable_evaluation()->set_every_epochs(between(1, 3));
  if (dice.Chance(0.3)) spec.set_priority(static_cast<int32_t>(between(0, 20)) - 10);
  return spec;
}

v1::Averaging Simulator::MakeAveraging(const v1::Cluster& cluster) {
  Dice& dice = dice_;
  const auto between = [&](uint64_t low, uint64_t high) -> uint32_t {
    return dice.Between(low, high);
  };
  const uint32_t groups = cluster.groups();
  const auto share = [&] { return static_cast<float>(between(0, 10)) / 10; };
  v1::Averaging averaging;
  averaging.set_every_steps(between(1, 6));
  const uint32_t every = averaging.every_steps();
  if (every > 1) averaging.mutable_overlap()->set_steps(between(0, every - 1));
  if (averaging.overlap().steps() > 0 && dice.Chance(0.2)) {
    averaging.mutable_overlap()->set_blend(share());
  }
  if (every % 2 == 0 && averaging.overlap().steps() < every / 2 && dice.Chance(0.2)) {
    averaging.mutable_fragments()->set_count(2);
  }
  if (groups > 1 && dice.Chance(0.5)) {
    averaging.set_quorum(between(1, groups));
    averaging.set_min_grace_ms(between(200, 4000));
    // Some workers may be lost permanently.
    const uint64_t remaining = max_ranks_ / cluster.ranks_per_group();
    if (dice.Chance(0.3)) {
      averaging.set_min_groups(between(1, std::min<uint64_t>(remaining, averaging.quorum())));
    }
    if (dice.Chance(0.3)) averaging.mutable_staleness()->set_max_rounds(between(1, 3));
    if (averaging.has_staleness() && dice.Chance(0.5)) {
      averaging.mutable_staleness()->set_weight(share());
    }
  }
  averaging.set_steps_by_speed(dice.Chance(0.2));
  if (dice.Chance(0.5)) {
    averaging.mutable_keep_versions()->set_every(between(1, 4));
    averaging.mutable_keep_versions()->set_count(between(0, 3));
  }
  MakeScreen(dice, averaging);
  if (dice.Chance(0.4)) averaging.set_max_solo_steps(between(1, 10));
  if (world_.has_outer_runs) MakeOuter(averaging);
  const bool can_copy = aggregators_.size() > 1 && cluster.aggregators() != 1;
  if (can_copy && dice.Chance(0.5)) averaging.set_copies(between(1, 2));
  return averaging;
}

// An outer optimizer, codes, or both.
void Simulator::MakeOuter(v1::Averaging& averaging) {
  Dice& dice = dice_;
  const auto between = [&](uint64_t low, uint64_t high) -> uint32_t {
    return dice.Between(low, high);
  };
  const auto coding = [&](bool up) {
    v1::Coding coding;
    coding.set_codec(static_cast<v1::Codec>(between(v1::CODEC_BF16, v1::CODEC_TOPK)));
    if (coding.codec() == v1::CODEC_TOPK && dice.Chance(0.5)) coding.set_keep(between(1, 4096));
    if (up && dice.Chance(0.3)) {
      coding.set_error_feedback(static_cast<float>(between(0, 10)) / 10);
    }
    return coding;
  };
  const uint64_t coded = between(0, 2);
  if (coded != 1 && dice.Chance(0.3)) {
    v1::SlowMo& slowmo = *averaging.mutable_outer()->mutable_slowmo();
    if (dice.Chance(0.5)) slowmo.set_learning_rate(static_cast<float>(between(1, 10)) / 10);
    if (dice.Chance(0.5)) slowmo.set_momentum(static_cast<float>(between(0, 9)) / 10);
  } else if (coded != 1) {
    v1::OuterNesterov& nesterov = *averaging.mutable_outer()->mutable_nesterov();
    nesterov.set_every_rounds(between(1, 3));
    if (dice.Chance(0.3)) nesterov.set_learning_rate(static_cast<float>(between(1, 10)) / 10);
    if (dice.Chance(0.3)) nesterov.set_momentum(static_cast<float>(between(0, 9)) / 10);
  }
  if (coded > 0 && dice.Chance(0.7)) *averaging.mutable_up() = coding(/*up=*/true);
  if (coded > 0 && dice.Chance(0.7)) *averaging.mutable_down() = coding(/*up=*/false);
}

// The user submits again until there is an answer, but not while two coordinators run.
void Simulator::Submit(const v1::RunSpec& spec) {
  auto answered = std::make_shared<bool>(false);
  const auto submitted = [this, answered](const std::string& run) {
    *answered = true;
    ++runs_submitted_;
    world_.Log("user  submitted ", run);
    if (faults_ended_ || !world_.dice.Chance(0.05)) return;
    world_.timeline.After(world_.dice.Between(absl::Seconds(1), absl::Seconds(60)),
                          [this, run] { coordinator().StopRun(run); });
  };
  if (!coordinators_.two()) coordinator().Submit(spec, submitted);
  world_.timeline.After(absl::Seconds(5), [this, spec, answered] {
    if (!*answered) Submit(spec);
  });
}

// ---- Faults

void Simulator::ScheduleFaults() {
  range_ = {.until = faults_for_,
            .workers = static_cast<uint32_t>(workers_.size()),
            .aggregators = static_cast<uint32_t>(aggregators_.size()),
            .max_lost = static_cast<uint32_t>(workers_.size()) - max_ranks_};
  Dice dice(options_.seed, Dice::Purpose::kFaults);
  faults_ = DrawFaults(range_, dice);
  for (size_t i = 0; i < faults_.size(); ++i) {
    const auto& only = options_.only_faults;
    if (only && std::find(only->begin(), only->end(), i) == only->end()) continue;
    injector_.Schedule(faults_[i], range_);
  }
}

void Simulator::CheckLiveness() {
  world_.timeline.After(absl::Seconds(1), [this] {
    liveness_.Check();
    loads_.Check();
    CheckLiveness();
  });
}

void Simulator::ScheduleTraces() {
  world_.timeline.After(world_.dice.Between(absl::Milliseconds(500), absl::Seconds(20)), [this] {
    if (faults_ended_) return;
    TraceSomeGroup();
    ScheduleTraces();
  });
}

void Simulator::TraceSomeGroup() {
  std::vector<v1::RunRecord> runs;
  for (auto it = coordinator().store().lower_bound(kRunPrefix);
       it != coordinator().store().end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    ParseRun(coordinator().store(), it->first, runs.emplace_back()).IgnoreError();
  }
  if (runs.empty()) return;
  Dice& dice = world_.dice;
  const v1::RunRecord& run = runs[dice.Between(0, runs.size() - 1)];
  const uint32_t group = dice.Between(0, GroupsOf(run.spec()) - 1);
  coordinator().TraceGroup(run.run(), group, dice.Between(1, 5),
                           dice.Chance(0.5)
                               ? absl::InfiniteDuration()
                               : dice.Between(absl::Milliseconds(100), absl::Seconds(10)));
}

void Simulator::EndFaults() {
  world_.Log("faults end");
  faults_ended_ = true;
  if (intruder_.has_value()) intruder_->Stop();
  operators_.End();
  injector_.End();
}

size_t Simulator::ConnectedWorkers() const {
  // Either may have as few as none.
  if (coordinators_.two()) return 0;
  const absl::Time now = world_.timeline.now();
  return std::count_if(workers_.begin(), workers_.end(), [&](const auto& worker) {
    const HostConditions& host = world_.hosts.at(worker->name());
    return worker->joined() && host.process.OpensAt() <= now && host.cut_up <= now &&
           host.cut_down <= now;
  });
}

bool Simulator::HasGroups(const std::string& run) const {
  const std::string prefix = GroupsPrefix(run);
  for (auto it = coordinator().store().lower_bound(prefix);
       it != coordinator().store().end() && absl::StartsWith(it->first, prefix); ++it) {
    v1::GroupRecord group;
    group.ParseFromString(it->second);
    if (group.generation() != 0) return true;
  }
  return false;
}

bool Simulator::AllEnded() const {
  if (runs_submitted_ < runs_wanted_) return false;
  for (auto it = coordinator().store().lower_bound(kRunPrefix);
       it != coordinator().store().end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    v1::RunRecord record;
    record.ParseFromString(it->second);
    // The disk of a parked run does not return, but operators continue one that has diverged.
    const bool parked = record.state() == v1::RUN_STATE_PARKED && !record.diverged();
    // Nor are values restored that are lost on an aggregator while the record is older.
    const bool lost = faults_ended_ && invariants_.IsRestored(record.run()) &&
                      invariants_.HasLostDisk(record) && !HasGroups(record.run());
    if (IsLive(record.state()) && !parked && !lost) return false;
  }
  return true;
}

void Simulator::ReportStuck() {
  std::string why;
  if (coordinator().machine() != nullptr) {
    const v1::StatusReply status = coordinator().machine()->Status(world_.timeline.now());
    for (const v1::RunStatus& run : status.runs()) {
      absl::StrAppend(&why, "; ", run.run(), " ", EnumText(run.state()), " version ", run.version(),
                      " step ", run.step(), " of ", run.total_steps(), " ", run.reason());
    }
    for (const v1::GroupStatus& group : status.groups()) {
      absl::StrAppend(&why, "; group ", group.group(), " of ", group.run(), " #",
                      group.generation(), " ", EnumText(group.state()), " ", group.reason());
    }
  }
  world_.Violate("the faults have ended, but not every run has ended", why);
}

Outcome Simulator::Run() {
  // The event log has what matters of the messages of the shard hosts.
  FLAGS_minloglevel = google::GLOG_FATAL;
  const std::vector<v1::RunSpec> specs = Draw();
  coordinator().Start();
  for (const v1::RunSpec& spec : specs) {
    world_.timeline.After(dice_.Between(absl::ZeroDuration(), faults_for_ / 2),
                          [this, spec] { Submit(spec); });
  }
  ScheduleFaults();
  ScheduleTraces();
  operators_.Start();
  CheckLiveness();
  world_.timeline.After(faults_for_, [this] { EndFaults(); });

  Outcome outcome;
  bool ended = false;
  uint64_t transactions = 0;
  while (!world_.violation && !ended) {
    if (!world_.timeline.Step()) break;
    ++outcome.events;
    if (faults_ended_ && transactions != world_.counters["transactions"]) {
      transactions = world_.counters["transactions"];
      ended = AllEnded();
    }
    if (ended) break;
    const bool late = world_.timeline.elapsed() > faults_for_ + kRecoveryLimit;
    if (late || outcome.events > kMaxEvents) ReportStuck();
  }
  // A request for a trace of an ended run must have been answered.
  if (!world_.violation && coordinator().traces_waiting() > 0) {
    world_.Violate(coordinator().traces_waiting(), " trace requests were not answered");
  }
  // Its supervisor may be about to start an aggregator again.
  for (const auto& aggregator : aggregators_) aggregator->Start(/*move=*/false);
  if (!world_.violation) {
    invariants_.CheckEnd(coordinator().store(),
                         [this](const std::string& name, const std::string& run) {
                           for (const auto& aggregator : aggregators_) {
                             if (aggregator->name() == name) return aggregator->VersionOf(run);
                           }
                           return std::optional<uint32_t>();
                         });
  }
  AddCounters(coordinator().store(), world_);
  for (const auto& aggregator : aggregators_) aggregator->CountRefusals();
  outcome.violation = world_.violation.value_or("");
  outcome.at = world_.timeline.elapsed();
  outcome.counters = world_.counters;
  outcome.faults = faults_;
  for (const Fault& fault : faults_) outcome.fault_texts.push_back(Describe(fault, range_));
  return outcome;
}

std::vector<std::string> LastLines(SimulatorOptions options) {
  std::deque<std::string> lines;
  options.on_line = [&](const std::string& line) {
    lines.push_back(line);
    if (lines.size() > kLastLines) lines.pop_front();
  };
  Simulator(options).Run();
  return {lines.begin(), lines.end()};
}

}  // namespace cadre::simulation
