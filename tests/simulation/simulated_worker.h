// A simulated worker process: the real state machine of assignments (member/assignment), the
// stream, and one session after another, as in member/group_member.
//
// Thread-compatible.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "member/assignment.h"
#include "member/session_slots.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/membership_link.h"
#include "tests/simulation/simulated_session.h"

namespace cadre::simulation {

class SimulatedWorker {
 public:
  SimulatedWorker(World& world, Network& network, Fabrics& fabrics, Directory& directory,
                  Invariants& invariants, std::string name, absl::Duration step_time)
      : world_(world),
        network_(network),
        fabrics_(fabrics),
        directory_(directory),
        invariants_(invariants),
        name_(std::move(name)),
        step_time_(step_time),
        life_(&world.hosts[name_].process),
        training_life_(&world.hosts[name_].training) {}

  // Starts a new process.
  void Start();
  void Kill(bool host_lost);
  // Sends Goodbye and ends the process.
  void Leave();
  void OnClockJump(absl::Duration by) {
    if (up()) link_->OnClockJump(by);
  }
  bool up() const { return link_ != nullptr; }
  // Whether the process runs and has joined the coordinator.
  bool joined() const { return up() && link_->connected(); }
  ConnectionId intact_stream() const { return up() ? link_->intact_stream() : 0; }
  const std::string& member_id() const { return link_->member_id(); }
  const std::string& incarnation() const { return incarnation_; }
  const std::string& name() const { return name_; }
  absl::Duration step_time() const { return step_time_; }
  // What its training thread counts (TrainerProgress).
  uint64_t progress() const { return up() ? progress_->count() : 0; }
  // The current session; null if none.
  const SimulatedSession* session() const { return sessions_.current().get(); }

 private:
  v1::Hello MakeHello();
  v1::Heartbeat MakeHeartbeat() const;
  void Do(const AssignmentMachine::Actions& actions);
  std::shared_ptr<SimulatedSession> MakeSession(const v1::Assignment& assignment);
  // Starts the next session when the previous one has ended, as the training thread of a worker.
  void RunNext();
  void OnDrain(const v1::Drain& drain);
  // Leaves after this time.
  void LeaveWithin(absl::Duration time);
  // On the training thread of the current session.
  void OnEnded(const TrainerOutcome& outcome);

  World& world_;
  Network& network_;
  Fabrics& fabrics_;
  Directory& directory_;
  Invariants& invariants_;
  const std::string name_;
  const absl::Duration step_time_;

  // State of the process.
  uint64_t process_ = 0;
  std::string incarnation_;
  Lifetime life_;
  // Lifetime of work of the training thread between sessions.
  Lifetime training_life_;
  std::unique_ptr<TrainerProgress> progress_;
  std::unique_ptr<StateVault> states_;
  std::unique_ptr<StateVault> residuals_;
  uint64_t hellos_ = 0;
  std::unique_ptr<AssignmentMachine> machine_;
  std::unique_ptr<MembershipLink> link_;
  bool draining_ = false;
  SessionSlots<SimulatedSession> sessions_;
};

}  // namespace cadre::simulation
