// A simulated worker process: the real state machine of assignments (worker/assignment), the
// stream, and at most one trainer (session) at a time, as in worker/worker.
//
// Thread-compatible.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/membership_link.h"
#include "tests/simulation/simulated_trainer.h"
#include "worker/assignment.h"

namespace cadre::simulation {

class SimulatedWorker {
 public:
  SimulatedWorker(World& world, Network& network, Fabrics& fabrics, Directory& directory,
                  Invariants& invariants, std::string name, uint64_t schema_hash,
                  absl::Duration step_time)
      : world_(world),
        network_(network),
        fabrics_(fabrics),
        directory_(directory),
        invariants_(invariants),
        name_(std::move(name)),
        schema_hash_(schema_hash),
        step_time_(step_time) {}

  // Starts a new process.
  void Start();
  void Kill(bool host_lost);
  // Sends Goodbye and ends the process.
  void Leave();
  bool up() const { return link_ != nullptr; }
  const std::string& name() const { return name_; }
  // The current session; null if none.
  const SimulatedTrainer* trainer() const { return current_.get(); }

 private:
  v1::Hello MakeHello() const;
  void Do(const AssignmentMachine::Actions& actions);
  std::unique_ptr<SimulatedTrainer> MakeTrainer(const v1::Assignment& assignment);
  // Starts the next session when the previous one has ended, as the training thread of a worker.
  void RunNext();
  void OnEnded(const v1::RankSlot& place, const absl::Status& status);

  World& world_;
  Network& network_;
  Fabrics& fabrics_;
  Directory& directory_;
  Invariants& invariants_;
  const std::string name_;
  const uint64_t schema_hash_;
  const absl::Duration step_time_;

  // State of the process.
  uint64_t process_ = 0;
  std::string incarnation_;
  Lifetime life_;
  std::unique_ptr<AssignmentMachine> machine_;
  std::unique_ptr<MembershipLink> link_;
  std::unique_ptr<SimulatedTrainer> current_;
  std::unique_ptr<SimulatedTrainer> waiting_;
  // Whether `current_` was cancelled; it then ends after a random time, as its thread would.
  bool ending_ = false;
};

}  // namespace cadre::simulation
