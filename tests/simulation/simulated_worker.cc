#include "tests/simulation/simulated_worker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "tests/simulation/describe.h"

namespace cadre::simulation {

void SimulatedWorker::Start() {
  if (up()) return;
  ++process_;
  incarnation_ = absl::StrCat(name_, ".", process_);
  world_.Log(name_, "    starts");
  draining_ = false;
  progress_ = std::make_unique<TrainerProgress>();
  states_ = std::make_unique<StateVault>();
  residuals_ = std::make_unique<StateVault>();
  machine_ = std::make_unique<AssignmentMachine>();
  link_ = std::make_unique<MembershipLink>(
      world_, network_,
      MembershipLink::Options{.host = name_,
                              .hello = [this] { return MakeHello(); },
                              .on_message =
                                  [this](const v1::CoordinatorMessage& m) {
                                    if (m.has_drain()) OnDrain(m.drain());
                                    Do(machine_->Receive(m));
                                    return true;
                                  },
                              .on_connection =
                                  [this](bool connected) {
                                    if (connected && world_.plant != Plant::kForgetUnanswered) {
                                      Do(machine_->Connected());
                                    }
                                  },
                              .heartbeat = [this] { return MakeHeartbeat(); },
                              .on_refused = [this] { LeaveWithin(absl::ZeroDuration()); }});
  link_->Start();
}

void SimulatedWorker::Kill(bool host_lost) {
  if (!up()) return;
  world_.Count("worker_kills");
  world_.Log(name_, "    crashes", host_lost ? " with its host" : "");
  life_.End();
  training_life_.End();
  // A new process has neither of them.
  HostConditions& host = world_.hosts[name_];
  host.process.until = host.training.until = absl::InfinitePast();
  if (sessions_.current() != nullptr) {
    invariants_.OnTraining(sessions_.current()->place(), /*begins=*/false);
    sessions_.current()->Kill(host_lost);
  }
  sessions_ = {};
  link_->Stop(host_lost);
  link_.reset();
  machine_.reset();
}

void SimulatedWorker::Leave() {
  if (!up()) return;
  world_.Count("workers_left");
  link_->SendGoodbye();
  Kill(/*host_lost=*/false);
}

// As cadre-worker does. Its supervisor starts it again.
void SimulatedWorker::OnDrain(const v1::Drain& drain) {
  if (std::exchange(draining_, true)) return;
  const absl::Duration within = absl::Seconds(std::max(1.0, drain.seconds()));
  const bool finishes = machine_->started() && sessions_.current() != nullptr;
  if (finishes) sessions_.current()->Drain(within);
  LeaveWithin(finishes ? within : absl::ZeroDuration());
}

void SimulatedWorker::LeaveWithin(absl::Duration time) {
  world_.timeline.After(time, life_, [this] {
    Leave();
    world_.timeline.After(world_.dice.Between(absl::Seconds(1), absl::Seconds(60)), life_,
                          [this] { Start(); });
  });
}

v1::Heartbeat SimulatedWorker::MakeHeartbeat() const {
  v1::Heartbeat heartbeat;
  if (world_.plant == Plant::kHideProgress) return heartbeat;
  if (machine_->rank_slot()) *heartbeat.mutable_place() = *machine_->rank_slot();
  heartbeat.set_activity(progress_->activity());
  heartbeat.set_progress(progress_->count());
  return heartbeat;
}

v1::Hello SimulatedWorker::MakeHello() {
  v1::Hello hello;
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name(name_);
  hello.set_incarnation(incarnation_);
  hello.set_address(absl::StrCat(incarnation_, ":1"));
  hello.set_host(name_);
  if (world_.plant == Plant::kHideIdentity) {
    hello.set_name(absl::StrCat(name_, "-", ++hellos_));
    hello.set_host(hello.name());
  }
  hello.set_device_kind(v1::Cluster::CPU);
  if (machine_->rank_slot()) *hello.mutable_place() = *machine_->rank_slot();
  return hello;
}

void SimulatedWorker::Do(const AssignmentMachine::Actions& actions) {
  sessions_.CarryOut(
      actions, [this](const v1::Assignment& assignment) { return MakeSession(assignment); },
      [this](const v1::MemberMessage& message) { link_->Send(message); });
  RunNext();
}

std::shared_ptr<SimulatedSession> SimulatedWorker::MakeSession(const v1::Assignment& assignment) {
  const SessionContext context{
      .bulk = {world_, network_, directory_, invariants_},
      .fabrics = fabrics_,
      .host = name_,
      .step_time = step_time_,
      .progress = *progress_,
      .states = *states_,
      .residuals = *residuals_,
  };
  return std::make_shared<SimulatedSession>(
      context, assignment,
      SimulatedSession::Callbacks{
          .report = [this](const TrainingReport& report) { Do(machine_->Report(report)); },
          .connected = [this] { return link_->connected(); },
          .may_leave = [this] { LeaveWithin(absl::ZeroDuration()); },
          .ended = [this](const TrainerOutcome& outcome) { OnEnded(outcome); }});
}

void SimulatedWorker::RunNext() {
  if (sessions_.current() == nullptr && sessions_.waits()) sessions_.TakeNext()->Run();
}

void SimulatedWorker::OnEnded(const TrainerOutcome& outcome) {
  const v1::RankSlot place = sessions_.current()->place();
  const bool cancelled = sessions_.current()->cancelled();
  invariants_.OnTraining(place, /*begins=*/false);
  world_.Log(name_, "    leaves ", Describe(place), ": ",
             absl::StatusCodeToString(outcome.status.code()), ": ", outcome.status.message());
  // The session is destroyed when its thread has ended.
  progress_->Enter(v1::ACTIVITY_UNSPECIFIED);
  world_.timeline.After(absl::ZeroDuration(), training_life_, [this] {
    sessions_.Leave();
    RunNext();
  });
  if (cancelled) return;
  if (outcome.cause == v1::FAILURE_CAUSE_DIGEST && !invariants_.MayPullWrongValues(place.run())) {
    world_.Violate(Describe(place), ": ", outcome.status.message());
  }
  world_.Count("trainers_failed");
  invariants_.OnFailed(place, name_, outcome.cause);
  v1::GroupFailed failed;
  *failed.mutable_place() = place;
  failed.set_cause(outcome.cause);
  failed.set_reason(std::string(outcome.status.message()));
  for (const int rank : outcome.suspects) failed.add_suspects(rank);
  Do(machine_->Fail(failed));
}

}  // namespace cadre::simulation
