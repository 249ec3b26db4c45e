// What a rank exchanges with the aggregators and in which form, and what of it survives the
// generation: the rank's part of the model, the codes, the states in the vaults, the states of the
// averaging in checkpoints. MemberLoop decides when.
//
// All methods are collectives, which the ranks of the group call in the same order, except
// has_shards, AddMemory, TakeTransferTime, staged, OnAdopted and ForgetStates. Borrows its
// arguments. Used by the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/counters.h"
#include "member/cancellation.h"
#include "member/contribution_coder.h"
#include "member/group_control.h"
#include "member/kept_change.h"
#include "member/loop_options.h"
#include "member/model_values.h"
#include "member/owned.h"
#include "member/rank_protocol.h"
#include "member/regroup.h"
#include "member/shard_exchange.h"
#include "member/state_vault.h"
#include "member/trainer_progress.h"
#include "model/exchange_units.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class Averager {
 public:
  // `failure` receives the causes of errors.
  Averager(const v1::Assignment& assignment, ModelValues& model, Cancellation& cancellation,
           Counters& counters, TrainerProgress& progress, const MemberLoopOptions& options,
           FailureNote& failure)
      : assignment_(assignment),
        averaging_(assignment.spec().averaging()),
        model_(model),
        cancellation_(cancellation),
        counters_(counters),
        progress_(progress),
        options_(options),
        failure_(failure) {}
  Averager(const Averager&) = delete;
  Averager& operator=(const Averager&) = delete;
  // Ends the exchange. What only this rank has is in the vaults then.
  ~Averager();

  // The other methods may be called after it.
  absl::Status Prepare(GroupControl& control);

  // False: the run does not average, and most calls have no effect.
  bool has_shards() const { return exchange_->has_shards(); }
  // Adds what the exchange allocates to the memory that the model has described.
  void AddMemory(v1::MemoryUse& memory) const;
  // Time in which values were sent and received since the last call.
  absl::Duration TakeTransferTime() { return std::exchange(transferred_, absl::ZeroDuration()); }

  // The sum of the ranks' digests of the model that they own.
  absl::StatusOr<uint64_t> GroupDigest();

  // ---- Contributions. `version` is the adopted one.
  // Begins to stage the model's values, and keeps the optimizer's states.
  absl::Status BeginStage(const RankProtocol::Stage& stage, uint32_t version);
  // Whether this rank has staged.
  bool staged() const { return exchange_->finished(); }
  // Waits until it has. A contribution that is too late is not an error: the coordinator's decision
  // determines how to continue.
  absl::Status FinishStage(uint32_t version, Traffic* traffic);

  // ---- Versions
  // The model becomes version 0: the values of the run's seed, or those of its checkpoint.
  absl::Status MakeInitial();
  absl::Status BeginPull(const RankProtocol::Pull& pull);
  // Overwrites the model with the version. `kept`: as in TrainedModel::OnAdopted.
  absl::Status FinishPull(const RankProtocol::Pull& pull, Traffic* traffic, bool* kept);
  // Adds what the steps of the overlap have changed.
  absl::Status Merge();

  // ---- What survives the generation
  // Restores what the vaults have for the version from which the generation starts, which includes
  // this contribution of the group.
  absl::Status Restore(const v1::Start& start);
  // The ranks that leave give to others what their vaults have.
  absl::Status HandOver(uint32_t version, const std::vector<bool>& leaving);
  // The states of the adopted version for a checkpoint; without those of the shards, and with a
  // warning, if these have replaced the version or cannot be reached. Valid until ForgetStates.
  absl::StatusOr<std::vector<AveragingState>> States(uint32_t version, std::string* warning);
  void ForgetStates() { state_values_.clear(); }

 private:
  Communicator& group() { return model_.group(); }
  bool alone() const { return model_.group().size() == 1; }
  // Equal on all ranks.
  bool KeepsStates() const;
  bool KeepsCarried() const;
  // Whether the vault gets what is carried only when the generation ends. A device may fail before.
  bool CarriesAlone() const { return KeepsCarried() && alone() && coder_ == nullptr; }
  // Bytes of host memory that the exchange needs.
  int64_t ExchangeBytes() const;

  absl::Status MakeCoder();
  absl::Status KeepStates(const RankProtocol::Stage& stage);
  // The fetched weights become those that are exchanged, or the reverse.
  absl::Status GatherPart();
  absl::Status StorePart();
  absl::Status OfferInitial();
  // `included_round`: as in RestoreCarried.
  absl::Status RestoreStates(uint32_t version, uint32_t included_round);
  // `included_round`: of the newest contribution that the version includes; 0: it includes none.
  absl::Status RestoreCarried(uint32_t version, uint32_t included_round);
  // A vault holds what is carried or, until the decision on a contribution is known, its change and
  // what its code has left out. The count of a position (UpdateCount) is the round to which its
  // value was contributed, which is not weighted yet; 0: the value is carried as it is.
  absl::Status KeepCarried();
  absl::Status KeepStaged(uint32_t version);
  // Keeps what follows from the contribution, whose decision is not known.
  absl::Status KeepUndecided();
  void KeepForNextGeneration();
  // Keeps in the snapshot what follows from the decision on its contribution, with which the group
  // continues from `version`. Changes that were late before are weighted again only if a generation
  // begins: otherwise the group still contributes them. Returns how many rounds late a change is
  // that is dropped for this reason; 0: none is.
  uint32_t Settle(uint32_t version, bool included, bool screened, bool begins,
                  StateVault::Snapshot& snapshot) const;
  // The change is `late` rounds late; 0: it is not.
  void ReportDropped(uint32_t late);
  // What a checkpoint contains, as zeros in state_values_. What codes have left out of
  // contributions is the first state, if there is any.
  std::vector<AveragingState> MakeStates();
  absl::Status PullStates(uint32_t version, std::vector<std::vector<float>>::iterator values);
  void CountPulled(const Traffic& traffic);

  const v1::Assignment& assignment_;
  const v1::Averaging& averaging_;
  ModelValues& model_;
  Cancellation& cancellation_;
  Counters& counters_;
  TrainerProgress& progress_;
  const MemberLoopOptions& options_;
  FailureNote& failure_;
  bool codes_up_ = false;

  // The part of the model that this rank exchanges, in a run that exchanges whole units.
  std::optional<ExchangeUnits> units_;
  std::vector<float> part_values_;
  Owned part_;
  std::optional<Regroup> regroup_;
  // What this rank exchanges: its part, or what it owns.
  std::span<const Owned> exchanged_;
  // The values of MakeStates.
  std::vector<std::vector<float>> state_values_;
  // The round of the newest contribution; 0: there is none in this generation.
  uint32_t kept_round_ = 0;
  // What is carried is in the exchange alone, and belongs to this version.
  bool carries_ = false;
  uint32_t carried_version_ = 0;
  // The states of the model are those at this contribution, and in no vault; 0: a vault has them.
  uint32_t states_round_ = 0;
  // Null: the exchange codes contributions.
  std::unique_ptr<ContributionCoder> coder_;
  std::unique_ptr<ShardExchange> exchange_;
  // The group has adopted a version.
  bool has_version_ = false;
  absl::Duration transferred_;
};

}  // namespace cadre
