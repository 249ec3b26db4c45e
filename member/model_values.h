// The values that a rank exchanges with other groups, and what belongs to them: what Averager needs
// of a TrainedModel (member/trained_model.h, whose rules hold here).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "member/contribution_coder.h"
#include "member/owned.h"
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

class ModelValues {
 public:
  virtual ~ModelValues() = default;

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
  // A collective: loads what the checkpoint has, from which the run starts, if any. Overwrites the
  // values of `averaging` that it has.
  virtual absl::Status LoadCheckpoint(const std::vector<AveragingState>& /*averaging*/,
                                      FailureNote& /*failure*/) {
    return absl::OkStatus();
  }
  // Whether the values are those of version 0 before the first version is adopted.
  virtual bool has_initial_version() const { return true; }
};

}  // namespace cadre
