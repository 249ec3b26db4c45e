// What a rank trains: the network that this process computes itself (trainer.cc), or the values of
// a program with a training loop of its own (group/caller_trainer). MemberLoop carries out the
// protocol of rounds for either.
//
// All ranks of a group call the same methods in the same order; methods that are collectives say
// so. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "member/contribution_coder.h"
#include "member/owned.h"
#include "member/rank_protocol.h"
#include "member/state_vault.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// The first error whose cause is known.
class FailureNote {
 public:
  // Returns `status`. If it is an error, `cause` is its cause.
  absl::Status Blame(v1::FailureCause cause, absl::Status status) {
    if (!status.ok()) cause_ = cause;
    return status;
  }
  v1::FailureCause cause() const { return cause_; }

 private:
  v1::FailureCause cause_ = v1::FAILURE_CAUSE_UNSPECIFIED;
};

// Adds the step, and the version that remains the latest, to the error of a diverged run.
inline absl::Status AtStep(uint32_t step, uint32_t version, const absl::Status& status) {
  if (!absl::IsOutOfRange(status)) return status;
  return absl::OutOfRangeError(
      absl::StrCat("step ", step, ": ", status.message(), "; version ", version, " is kept"));
}

// The same for an error of the values that `steps` steps have made.
inline absl::Status AfterSteps(uint32_t steps, uint32_t version, const absl::Status& status) {
  if (steps > 0 || !absl::IsOutOfRange(status)) return AtStep(steps - 1, version, status);
  return absl::OutOfRangeError(absl::StrCat("before the first step: ", status.message()));
}

// What is reported of training between two boundaries.
struct PeriodReport {
  // Mean; nothing if it is not known.
  std::optional<double> loss;
  // Learning rate of the last step; 0: not known.
  float rate = 0;
  // What a program has reported. The coordinator derives the tokens of a network from its samples.
  v1::TrainingMetrics metrics;
};

class TrainedModel {
 public:
  // Sets `warning` if states are left out.
  using AveragingSource =
      std::function<absl::StatusOr<std::vector<AveragingState>>(std::string* warning)>;

  virtual ~TrainedModel() = default;

  // Before the ranks connect: opens the data.
  virtual absl::Status Open(FailureNote& failure) = 0;
  // A collective: prepares to train. Keeps `transport`, which connects the ranks, and `protocol`,
  // whose state tells where training stands; both outlive the calls of other methods.
  virtual absl::Status Prepare(Transport& transport, const RankProtocol& protocol,
                               FailureNote& failure) = 0;
  // What the rank reports of itself; `place` is set by the caller.
  virtual v1::Prepared Describe() const = 0;
  // Errors of the compute device.
  virtual absl::Status device_status() const { return absl::OkStatus(); }

  virtual const ParameterIndex& index() const = 0;
  // The communicator of all ranks.
  virtual Communicator& group() = 0;
  // What this rank owns, in parameter order. Fetch makes the values current, with `states` also
  // those of States(); Store makes the model use them. Both block.
  virtual std::span<const Owned> owned() const = 0;
  virtual absl::Status Fetch(bool states) = 0;
  virtual absl::Status Store(bool states) = 0;
  // A collective. Codes contributions where the weights are; null: they are coded in host memory.
  // A model with a coder fetches states with FetchStates, and not its weights, before it
  // contributes.
  virtual absl::StatusOr<std::unique_ptr<ContributionCoder>> MakeContributionCoder(
      ContributionCoder::Layout /*layout*/) {
    return nullptr;
  }
  // Makes the values of States() current. Blocks.
  virtual absl::Status FetchStates() { return absl::OkStatus(); }
  // The optimizer's states of the owned values, if there are any to keep.
  virtual bool has_states() const { return false; }
  virtual StateVault::States States() { return {}; }
  virtual void RestoreStates(const StateVault::States& /*states*/) {}
  // Returns when no operation uses the weights.
  virtual absl::Status AwaitOperations() { return absl::OkStatus(); }
  // A collective. Errors: OutOfRange, naming a parameter, if a weight is not finite.
  virtual absl::Status CheckWeights() = 0;
  // A collective: all ranks receive the weights that the others own.
  virtual absl::Status Gather() = 0;
  // A collective: loads what the checkpoint has, from which the run starts, if any. Overwrites the
  // values of `averaging` that it has.
  virtual absl::Status LoadCheckpoint(const std::vector<AveragingState>& /*averaging*/,
                                      FailureNote& /*failure*/) {
    return absl::OkStatus();
  }

  // Whether the values are those of version 0 before the first version is adopted.
  virtual bool has_initial_version() const { return true; }
  // The group has adopted the version of protocol.decision(). `kept`: the steps that it contributed
  // before are in the version, or later contributions carry them.
  virtual void OnAdopted(bool /*kept*/) {}

  // Training continues from `step`.
  virtual void StartAt(uint32_t step) = 0;
  // A pause has ended that does not count as time of training.
  virtual void Resume() {}
  // A collective: trains to step `until` (RankProtocol::Train). Returns the step that it has
  // reached, which is an earlier one if no more steps follow (RankProtocol::Trained.leaves).
  virtual absl::StatusOr<uint32_t> Train(const RankProtocol::Train& train,
                                         FailureNote& failure) = 0;
  // Whether the program has ended its loop, so that Train reaches no further step.
  virtual bool ended_loop() const { return false; }
  // Seconds of a step; 0: unknown.
  virtual double step_seconds() const { return 0; }
  // A collective: this rank or another one leaves the group.
  virtual absl::Status OnLeaving() { return absl::OkStatus(); }
  // The values of a version, or merged values, are those of this step.
  virtual void MoveTo(uint32_t step) = 0;
  // Reports on the steps since the last call.
  virtual PeriodReport TakePeriod() = 0;
  // A collective: evaluates test samples; `digest` is set by the caller.
  virtual absl::StatusOr<RankProtocol::Evaluated> Evaluate(
      const RankProtocol::Evaluate& /*evaluate*/, FailureNote& /*failure*/) {
    return absl::UnimplementedError("this group cannot evaluate");
  }
  // A collective: saves a checkpoint if one is due (RankProtocol::Keep). Only then calls
  // `averaging`, a collective that returns the states of the averaging.
  virtual absl::Status MaybeSave(bool /*may_be_last*/, const AveragingSource& /*averaging*/) {
    return absl::OkStatus();
  }
  // A collective, before training: the run has ended at the version with which the group begins.
  // Saves its checkpoint unless an earlier generation has done so.
  virtual absl::Status SaveLast(const AveragingSource& /*averaging*/) { return absl::OkStatus(); }
  // No more steps follow.
  virtual absl::Status OnTrainingEnded() { return absl::OkStatus(); }
  // The last call of a generation: releases what uses the transport.
  virtual void Close() {}
};

}  // namespace cadre
