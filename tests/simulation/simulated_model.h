// What a simulated rank trains: every step changes each value that the rank owns by a number that
// depends on the group, its generation and the position, so that a contribution shows which steps
// it contains. Time passes as a step would take it. The optimizer's state of a position contains
// the position and the round, so that a state in a wrong place, or of a later version, is detected.
//
// Used by the training thread of the session.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "member/group_control.h"
#include "member/trained_model.h"
#include "member/trainer_progress.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/model.h"
#include "tests/simulation/simulated_thread.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class SimulatedModel final : public TrainedModel {
 public:
  SimulatedModel(World& world, Invariants& invariants, HostConditions& host,
                 absl::Duration step_time, const v1::Assignment& assignment, GroupControl& control,
                 TrainerProgress& progress, Threads& threads);

  // ---- TrainedModel
  absl::Status Open(FailureNote& failure) override;
  absl::Status Prepare(Transport& transport, const RankProtocol& protocol,
                       FailureNote& failure) override;
  v1::Prepared Describe() const override;
  const ParameterIndex& index() const override { return index_; }
  Communicator& group() override { return *group_; }
  std::span<const Owned> owned() const override { return owned_; }
  absl::Status Fetch(bool /*states*/) override { return absl::OkStatus(); }
  absl::Status Store(bool states) override;
  absl::Status FetchStates() override { return absl::OkStatus(); }
  bool has_states() const override { return true; }
  StateVault::States States() override;
  void RestoreStates(const StateVault::States& states) override;
  absl::Status CheckWeights() override { return absl::OkStatus(); }
  absl::Status Gather() override { return absl::OkStatus(); }
  absl::Status LoadCheckpoint(const std::vector<AveragingState>& averaging,
                              FailureNote& failure) override;
  void OnAdopted(bool kept) override;
  void Resume() override;
  void StartAt(uint32_t step) override;
  absl::StatusOr<uint32_t> Train(const RankProtocol::Train& train, FailureNote& failure) override;
  void MoveTo(uint32_t step) override;
  PeriodReport TakePeriod() override;
  absl::StatusOr<RankProtocol::Evaluated> Evaluate(const RankProtocol::Evaluate& evaluate,
                                                   FailureNote& failure) override;

  // ---- For the checks of the simulation
  uint32_t version() const { return protocol_ == nullptr ? 0 : protocol_->version(); }
  // The version that the rank has.
  std::optional<uint32_t> held() const { return held_; }
  uint64_t steps_begun() const { return steps_begun_; }
  // The newest round to which the rank has begun to contribute; 0: none.
  uint32_t staged_round() const { return staged_round_; }
  bool training() const { return training_; }

 private:
  bool lead() const { return place().rank() == 0; }
  const v1::RankSlot& place() const { return assignment_.place(); }
  const v1::RunSpec& spec() const { return assignment_.spec(); }
  // Cancelled if the process was killed.
  absl::Status Sleep(absl::Duration time);
  // An error if the host's conditions have this cause.
  absl::Status CheckHost(v1::FailureCause cause, FailureNote& failure) const;
  absl::Status TrainStep();
  void ChangeValues();
  // The rank holds the values of a version.
  void ReportHeld(uint32_t version);
  // Rank 0 reports random progress and step times at random steps.
  void MaybeReport();
  // Adds the last step to the trace in progress, as one event.
  void TraceStep();

  World& world_;
  Invariants& invariants_;
  HostConditions& host_;
  const absl::Duration step_time_;
  const v1::Assignment& assignment_;
  GroupControl& control_;
  TrainerProgress& progress_;
  Threads& threads_;
  const ParameterIndex index_;
  const std::vector<Interval> spans_;
  // All values, by position; those that are not owned are not used.
  Values values_;
  Values states_;
  std::vector<Owned> owned_;
  RankChanges changes_;
  TrainedBatches batches_;
  // The values that were adopted last.
  Values adopted_;
  const RankProtocol* protocol_ = nullptr;
  std::unique_ptr<Communicator> group_;

  std::optional<uint32_t> held_;
  uint32_t step_ = 0;
  uint64_t steps_begun_ = 0;
  uint32_t staged_round_ = 0;
  bool training_ = false;
  // The trace in progress, if any, and the number of steps that it still needs.
  std::optional<v1::Traced> tracing_;
  uint32_t trace_steps_left_ = 0;
};

}  // namespace cadre::simulation
