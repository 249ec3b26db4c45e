#include "tests/simulation/simulated_worker.h"

#include <utility>
#include <variant>

#include "tests/simulation/describe.h"

namespace cadre::simulation {

void SimulatedWorker::Start() {
  if (up()) return;
  ++process_;
  incarnation_ = absl::StrCat(name_, ".", process_);
  world_.Log(name_, "    starts");
  progress_ = std::make_unique<TrainerProgress>();
  machine_ = std::make_unique<AssignmentMachine>();
  link_ = std::make_unique<MembershipLink>(
      world_, network_,
      MembershipLink::Options{.host = name_,
                              .protocol = protocol_,
                              .hello = [this] { return MakeHello(); },
                              .on_message =
                                  [this](const v1::CoordinatorMessage& m) {
                                    if (m.has_refused() &&
                                        m.refused().refusal() == v1::REFUSAL_UNKNOWN_MEMBER) {
                                      unregistered_at_ = world_.timeline.now();
                                    }
                                    Do(machine_->Receive(m));
                                  },
                              .on_connection =
                                  [this](bool connected) {
                                    if (connected && world_.plant != Plant::kForgetUnanswered) {
                                      Do(machine_->Connected());
                                    }
                                  },
                              .heartbeat = [this] { return MakeHeartbeat(); }});
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
  if (current_ != nullptr) {
    invariants_.OnTraining(current_->place(), /*begins=*/false);
    current_->Die(host_lost);
  }
  current_.reset();
  waiting_.reset();
  ending_ = false;
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
  for (const AssignmentMachine::Action& action : actions) {
    if (const auto* begin = std::get_if<AssignmentMachine::Begin>(&action)) {
      waiting_ = MakeTrainer(begin->assignment);
      RunNext();
    } else if (const auto* cancel = std::get_if<AssignmentMachine::Cancel>(&action)) {
      waiting_.reset();
      if (world_.plant == Plant::kIgnoreRelease) continue;
      if (current_ != nullptr) current_->Cancel(cancel->reason);
    } else if (const auto* send = std::get_if<AssignmentMachine::Send>(&action)) {
      link_->Send(send->message);
    } else if (const auto* deliver = std::get_if<AssignmentMachine::Deliver>(&action)) {
      SimulatedTrainer* const trainer = waiting_ != nullptr ? waiting_.get() : current_.get();
      if (trainer == nullptr) continue;
      const v1::CoordinatorMessage& message = deliver->message;
      if (message.has_start()) trainer->Deliver(message.start());
      if (message.has_decision()) trainer->Deliver(message.decision());
      if (message.has_nudge()) trainer->Deliver(message.nudge());
      if (message.has_shard_addresses()) trainer->MoveShards(message.shard_addresses());
      if (message.has_trace_steps()) trainer->Deliver(message.trace_steps());
      if (message.has_restage()) trainer->Deliver(message.restage());
    }
  }
}

std::unique_ptr<SimulatedTrainer> SimulatedWorker::MakeTrainer(const v1::Assignment& assignment) {
  return std::make_unique<SimulatedTrainer>(
      world_, network_, fabrics_, directory_, invariants_, name_, step_time_, *progress_,
      assignment,
      SimulatedTrainer::Callbacks{
          .send = [this](const TrainingReport& report) { Do(machine_->Report(report)); },
          .connected = [this] { return link_->connected(); },
          .ended = [this, place = assignment.place()](
                       const absl::Status& status,
                       const v1::GroupFailed& failed) { OnEnded(place, status, failed); }});
}

void SimulatedWorker::RunNext() {
  if (current_ != nullptr || waiting_ == nullptr) return;
  current_ = std::move(waiting_);
  current_->Run();
}

void SimulatedWorker::OnEnded(const v1::RankSlot& place, const absl::Status& status,
                              v1::GroupFailed failed) {
  invariants_.OnTraining(place, /*begins=*/false);
  world_.Log(name_, "    leaves ", Describe(place), ": ", status.ToString());
  if (!absl::IsCancelled(status)) {
    world_.Count("trainers_failed");
    invariants_.OnFailed(place, name_, failed.cause());
    *failed.mutable_place() = place;
    failed.set_reason(std::string(status.message()));
    Do(machine_->Fail(failed));
  }
  if (std::exchange(ending_, true)) return;
  // The session itself calls this function, so it is destroyed later, after a step in progress.
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), step_time_), training_life_,
                        [this] {
                          ending_ = false;
                          current_.reset();
                          progress_->Enter(v1::ACTIVITY_UNSPECIFIED);
                          RunNext();
                        });
}

}  // namespace cadre::simulation
