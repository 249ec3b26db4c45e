// A worker: the assignment machine, the stream, and at most one trainer at a time, as worker/worker
// drives them.
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

  // A new process.
  void Start();
  void Kill(bool host_lost);
  // Ends in good order.
  void Leave();
  bool up() const { return link_ != nullptr; }
  const std::string& name() const { return name_; }
  // What it trains in just now.
  const SimulatedTrainer* trainer() const { return current_.get(); }

 private:
  v1::Hello MakeHello() const;
  void Do(const AssignmentMachine::Actions& actions);
  std::unique_ptr<SimulatedTrainer> MakeTrainer(const v1::Assignment& assignment);
  // As worker's training thread: takes the next session when the one before is over.
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

  // Of the process.
  uint64_t process_ = 0;
  std::string incarnation_;
  Lifetime life_;
  std::unique_ptr<AssignmentMachine> machine_;
  std::unique_ptr<MembershipLink> link_;
  std::unique_ptr<SimulatedTrainer> current_;
  std::unique_ptr<SimulatedTrainer> waiting_;
  // Ends `current_` a while after it was cancelled: its thread has to come back.
  bool ending_ = false;
};

}  // namespace cadre::simulation
