#include "tests/simulation/operators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "coordinator/store/keys.h"
#include "tests/simulation/stored_records.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kMaxPause = absl::Seconds(60);
constexpr absl::Duration kMaxDrainPause = absl::Seconds(30);
constexpr absl::Duration kMaxDrain = absl::Seconds(60);
constexpr absl::Duration kAttend = absl::Seconds(20);
constexpr absl::Duration kReadmit = absl::Minutes(5);
// Until the coordinator has answered.
constexpr absl::Duration kAskAgain = absl::Seconds(5);

}  // namespace

void Operators::Start() {
  AttendDiverged();
  // Most clusters are left alone.
  if (world_.dice.Chance(0.4)) ScheduleNext();
  if (world_.dice.Chance(0.3)) ScheduleDrain();
}

void Operators::End() {
  ended_ = true;
  ReadmitAll();
}

// A screen may leave out an honest group again and again, until its workers are excluded. Those
// that hang remain marked: they would be chosen again like any other.
void Operators::ReadmitAll() {
  for (const auto& worker : workers_) {
    if (!HasStalled(worker->name())) Readmit(worker->name());
  }
  for (const auto& aggregator : aggregators_) Readmit(aggregator->name());
  world_.timeline.After(kReadmit, [this] { ReadmitAll(); });
}

bool Operators::HasStalled(const std::string& worker) const {
  const auto record = simulation::Read<v1::StandingRecord>(coordinators_.current().store(),
                                                           StandingKey(worker, worker));
  return record.has_value() && !record->cordoned() &&
         record->failed().cause() == v1::FAILURE_CAUSE_STALLED;
}

void Operators::ScheduleNext() {
  world_.timeline.After(world_.dice.Between(absl::Seconds(1), kMaxPause), [this] {
    if (ended_) return;
    if (!coordinators_.two()) (this->*verbs_[world_.dice.Between(0, verbs_.size() - 1)])();
    ScheduleNext();
  });
}

void Operators::ScheduleDrain() {
  world_.timeline.After(world_.dice.Between(absl::Seconds(1), kMaxDrainPause), [this] {
    if (ended_) return;
    if (!coordinators_.two()) Drain();
    ScheduleDrain();
  });
}

void Operators::Drain() {
  const v1::RunRecord run = RunIn(coordinators_.current().store(), RunKey(AnyRun()));
  if (run.shards().empty()) return;
  const std::string name =
      run.shards(static_cast<int>(world_.dice.Between(0, run.shards_size() - 1)));
  CordonMembers cordon{.member = name, .drain = true};
  coordinators_.current().Order(cordon, [this](const Replied& replied) {
    world_.Count(replied.status.ok() ? "aggregators_drained" : "drains_refused");
  });
  world_.timeline.After(world_.dice.Between(absl::Seconds(1), kMaxDrain),
                        [this, name] { Readmit(name); });
}

std::string Operators::AnyRun() const {
  std::vector<std::string> runs;
  const auto& store = coordinators_.current().store();
  for (auto it = store.lower_bound(kRunPrefix);
       it != store.end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    v1::RunRecord run;
    if (run.ParseFromString(it->second)) runs.push_back(run.run());
  }
  return runs.empty() ? "" : runs[world_.dice.Between(0, runs.size() - 1)];
}

const std::string& Operators::AnyWorker() const {
  return workers_[world_.dice.Between(0, workers_.size() - 1)]->name();
}

void Operators::Scale() {
  const uint32_t groups = world_.dice.Between(1, 4);
  coordinators_.current().Order(ScaleRun{.run = AnyRun(), .groups = groups},
                                [this](const Replied& replied) {
                                  if (replied.status.ok()) world_.Count("runs_scaled");
                                });
}

void Operators::Resume() {
  coordinators_.current().Order(ResumeRun{.run = AnyRun()}, [this](const Replied& replied) {
    if (replied.status.ok()) world_.Count("runs_resumed");
  });
}

// Also without other operators: a run that has diverged is not left alone.
void Operators::AttendDiverged() {
  world_.timeline.After(kAttend, [this] {
    const auto& store = coordinators_.current().store();
    for (auto it = store.lower_bound(kRunPrefix);
         it != store.end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
      v1::RunRecord run;
      if (!run.ParseFromString(it->second) || !run.diverged() || coordinators_.two()) continue;
      if (world_.dice.Chance(0.5)) {
        coordinators_.current().Order(ResumeRun{.run = run.run()}, [](const Replied&) {});
      } else {
        RollBack(run);
      }
    }
    AttendDiverged();
  });
}

void Operators::RollBack() {
  v1::RunRecord run;
  const auto& store = coordinators_.current().store();
  const auto found = store.find(RunKey(AnyRun()));
  if (found != store.end() && run.ParseFromString(found->second)) RollBack(run);
}

void Operators::RollBack(const v1::RunRecord& run) {
  const uint64_t kept = run.kept_size();
  RollBackRun order{.run = run.run()};
  order.version = kept == 0 || world_.dice.Chance(0.1)
                      ? run.version() + world_.dice.Between(0, 1)
                      : run.kept(static_cast<int>(world_.dice.Between(0, kept - 1)));
  if (!ended_ && world_.dice.Chance(0.2)) {
    order.leave_out.push_back(static_cast<uint32_t>(world_.dice.Between(0, 2)));
  }
  coordinators_.current().Order(order, [this](const Replied& replied) {
    world_.Count(replied.status.ok() ? "rollbacks_ordered" : "rollbacks_refused");
  });
}

void Operators::Delete() {
  const std::string run = AnyRun();
  invariants_.OnDeleteRequested(run);
  coordinators_.current().Order(DeleteRun{.run = run}, [this](const Replied& replied) {
    if (replied.status.ok()) world_.Count("runs_deleted");
  });
}

void Operators::Adopt() {
  coordinators_.current().Order(AdoptRuns{}, [this](const Replied& replied) {
    world_.Count("runs_adopted", replied.adopted.runs_size());
  });
}

void Operators::Cordon() {
  const bool aggregator = world_.dice.Chance(0.4);
  CordonMembers cordon{
      .member = aggregator ? aggregators_[world_.dice.Between(0, aggregators_.size() - 1)]->name()
                           : AnyWorker(),
      .undo = world_.dice.Chance(0.4)};
  cordon.drain = !cordon.undo && world_.dice.Chance(aggregator ? 0.7 : 0.5);
  if (cordon.drain && !aggregator) {
    cordon.drain_seconds = static_cast<double>(world_.dice.Between(1, 60));
  }
  coordinators_.current().Order(cordon, [this, cordon, aggregator](const Replied& replied) {
    if (!replied.status.ok()) return;
    world_.Count(aggregator     ? cordon.drain ? "aggregators_drained" : "aggregators_cordoned"
                 : cordon.undo  ? "workers_readmitted"
                 : cordon.drain ? "workers_drained"
                                : "workers_cordoned");
  });
}

// The run exists, so every read succeeds, unless it needs a version.
void Operators::Read() {
  const Machine* const machine = coordinators_.current().machine();
  const std::string run = AnyRun();
  if (machine == nullptr || run.empty()) return;
  const absl::Time now = world_.timeline.now();
  const auto check = [&](const char* method, const absl::Status& status) {
    world_.Count(absl::StrCat("method_", method));
    if (!status.ok()) world_.Violate(method, " of ", run, ": ", status.ToString());
  };
  v1::StatusRequest status;
  status.set_run(run);
  check("Get", machine->Status(now, status).status());
  v1::HistoryRequest history;
  history.set_run(run);
  check("History", machine->History(history).status());
  v1::LocateRequest locate;
  locate.set_run(run);
  const absl::Status located = machine->Locate(locate).status();
  check("Locate", absl::IsFailedPrecondition(located) ? absl::OkStatus() : located);
  const auto of_run = [&](const auto& one) { return one.run() == run; };
  const v1::ListReply list = machine->List(now);
  const bool listed = std::any_of(list.runs().begin(), list.runs().end(), of_run);
  check("List", listed ? absl::OkStatus() : absl::NotFoundError("it is not listed"));
  const bool watched =
      machine->Revisions(run).contains(run) && of_run(machine->Update(run, now).run());
  check("Watch", watched ? absl::OkStatus() : absl::NotFoundError("it is not shown"));
  machine->Events({});
  check("Events", absl::OkStatus());
}

// Until the coordinator has answered; a member that it does not know has no cordon.
void Operators::Readmit(const std::string& member) {
  auto answered = std::make_shared<bool>(false);
  coordinators_.current().Order(
      CordonMembers{.member = member, .undo = true}, [answered](const Replied& replied) {
        *answered = replied.status.ok() || absl::IsNotFound(replied.status);
      });
  world_.timeline.After(kAskAgain, [this, member, answered] {
    if (!*answered) Readmit(member);
  });
}

}  // namespace cadre::simulation
