// One session of a simulated worker: the real group session and the real loop of a rank
// (member/group_session, member/member_loop) on simulated threads, with a simulated model. Only
// what the loop needs of its process is simulated: time, threads, connections and the model.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/counters.h"
#include "member/group_session.h"
#include "member/member_loop.h"
#include "member/state_vault.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/simulated_client.h"
#include "tests/simulation/simulated_model.h"
#include "tests/simulation/simulated_runtime.h"
#include "tests/simulation/simulated_thread.h"
#include "tests/simulation/simulated_transport.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// What the sessions of one worker process share.
struct SessionContext {
  BulkNetwork bulk;
  Fabrics& fabrics;
  const std::string& host;
  absl::Duration step_time;
  TrainerProgress& progress;
  // What survives a generation.
  StateVault& states;
  StateVault& residuals;
};

class SimulatedSession final : private SessionOwner {
 public:
  struct Callbacks {
    std::function<void(const TrainingReport&)> report;
    std::function<bool()> connected;
    // The session of a draining worker has reached its boundary.
    std::function<void()> may_leave;
    // Called when the generation has ended for this rank, by a failure or a cancellation.
    std::function<void(const TrainerOutcome&)> ended;
  };

  SimulatedSession(const SessionContext& context, v1::Assignment assignment, Callbacks callbacks);
  ~SimulatedSession() override;

  // Starts the training thread.
  void Run();
  void Deliver(const v1::CoordinatorMessage& message);
  void Cancel(const std::string& reason) {
    if (world_.plant != Plant::kIgnoreRelease) session_.Cancel(reason);
  }
  void Drain(absl::Duration within) { session_.Drain(within); }
  bool cancelled() const { return !session_.cancellation().status().ok(); }
  // The process has ended, without any notification. Requires: not called from a thread.
  void Kill(bool host_lost);

  const v1::RankSlot& place() const { return session_.assignment().place(); }
  bool running() const { return thread_ != nullptr; }
  uint32_t version() const { return model_.version(); }
  // The version that the group was ordered to load, unless the rank has it.
  std::optional<uint32_t> loads() const {
    return model_.held() == ordered_version_ ? std::nullopt : ordered_version_;
  }
  uint64_t versions_ordered() const { return versions_ordered_; }
  uint64_t steps_begun() const { return model_.steps_begun(); }
  uint32_t staged_round() const { return model_.staged_round(); }
  // Rank 0 can only wait for the decision of that round.
  bool awaits_decision() const {
    return model_.training() && context_.progress.activity() == v1::ACTIVITY_WAITING;
  }

 private:
  // SessionOwner, from the threads.
  void Report(const TrainingReport& report) override;
  bool connected() const override { return !threads_.killed() && callbacks_.connected(); }
  void OnMayLeave() override {
    if (!threads_.killed()) callbacks_.may_leave();
  }

  TrainerOutcome Train();

  const SessionContext context_;
  World& world_;
  const Callbacks callbacks_;
  std::optional<uint32_t> ordered_version_;
  uint64_t versions_ordered_ = 0;
  Threads threads_;
  SimulatedRuntime runtime_;
  GroupSession session_;
  SimulatedModel model_;
  Counters counters_;
  std::shared_ptr<GroupLinks> links_;
  std::shared_ptr<Threads::Thread> thread_;
};

}  // namespace cadre::simulation
