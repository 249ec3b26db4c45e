// What a rank trains: the network that this process computes itself (trainer.cc), or the values of
// a program with a training loop of its own (group/caller_trainer). MemberLoop carries out the
// protocol of rounds for either.
//
// All ranks of a group call the same methods in the same order; methods that are collectives say
// so. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/transport.h"
#include "member/model_values.h"
#include "member/rank_protocol.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

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

class TrainedModel : public ModelValues {
 public:
  // Sets `warning` if states are left out.
  using AveragingSource =
      std::function<absl::StatusOr<std::vector<AveragingState>>(std::string* warning)>;

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

  // A collective. Errors: OutOfRange, naming a parameter, if a weight is not finite.
  virtual absl::Status CheckWeights() = 0;
  // A collective: all ranks receive the weights that the others own.
  virtual absl::Status Gather() = 0;
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
