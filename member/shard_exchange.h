// A rank's exchange with the shards of the aggregators: stages (uploads durably) the values that
// the rank owns, and pulls its part of a committed version, in background tasks. The owned values
// are read only by BeginStage and Adopt, and written only by Adopt and Merge. At any time the rank
// holds what it staged last or the version that it has adopted (member/held_values.h), and
// stages it again at a shard that has lost its files when the coordinator requests it
// (v1::Restage).
//
// In a run with coded contributions or versions, or with fragments (model/coding.h,
// ExchangesUnits), the owned values must be one interval of whole units (member/regroup.h). A
// coded contribution is a frame of the change since the version that the rank has adopted, plus
// what earlier frames have left out (error feedback): if the round includes the contribution, what
// this frame leaves out is kept for the next one, otherwise the whole change. So is, in a run with
// Staleness, the change of values in fp32. A version is pulled as the frames of all versions since
// the one that the rank has, or as a whole if the shard does not keep all of them.
//
// A contribution is coded by the exchange, from a copy of the owned values, or by a coder where the
// weights are (member/contribution_coder.h); of the owned values only those of version 0 are
// then read.
//
// Borrows its arguments and the owned values; `progress` advances with every chunk.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "member/cancellation.h"
#include "member/contribution_coder.h"
#include "member/group_control.h"
#include "member/held_values.h"
#include "member/kept_change.h"
#include "member/owned.h"
#include "member/runtime.h"
#include "member/trainer_progress.h"
#include "model/exchange_units.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/membership.pb.h"
#include "server/client/shard_client.h"

namespace cadre {

class ShardExchange {
 public:
  struct Options {
    // An exchange with a shard ends after this time without progress; the time for which its
    // aggregator is away does not count.
    absl::Duration silence = absl::Seconds(90);
    // Null unless ranks exchange whole units.
    const ExchangeUnits* units = nullptr;
    // Null unless contributions are coded elsewhere; its shards are those of the exchange.
    // Requires: CodesOnDevice.
    ContributionCoder* coder = nullptr;
  };
  ShardExchange(Runtime& runtime, const v1::Assignment& assignment, const ParameterIndex& index,
                std::span<const Owned> owned, GroupControl& control, Cancellation& cancellation,
                TrainerProgress& progress, const Options& options);
  ShardExchange(const ShardExchange&) = delete;
  ShardExchange& operator=(const ShardExchange&) = delete;
  ~ShardExchange();

  // Bytes that remain allocated between boundaries, once a version has been adopted after a
  // contribution: the staged values and the version; with coded contributions also the change,
  // what its frame leaves out and what is carried; with overlap the contributed and the merged
  // values. An upper bound with fragments. Requires: no coder.
  int64_t ExpectedBytes() const;
  // The memory that is allocated now.
  int64_t AllocatedBytes() const;

  // False: the run does not average.
  bool has_shards() const { return !shards_.empty(); }

  // Begins to stage a copy of the owned values as this rank's part of the group's contribution;
  // with a `fragment` other than 0, of those in it. With a coder: the change that it has taken. If
  // Finish returns OK, they are durable on every shard. Errors: as RoundsClient::Stage, naming the
  // shard.
  void BeginStage(uint32_t round, uint64_t samples, uint32_t fragment = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins to stage a copy of the owned values as this rank's part of `version` itself, which no
  // group has adopted yet (v1::ContributionHeader.seed).
  void BeginStageVersion(uint32_t version) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins to receive this rank's part of `version`. The owned values do not change.
  void BeginPull(uint32_t version) ABSL_LOCKS_EXCLUDED(mutex_);
  // What was begun last, which must end before anything else begins. Finish waits for the end
  // and adds the traffic; afterwards, `duration` is how long it took.
  bool begun() const { return running_ != nullptr; }
  bool finished() const { return running_->done(); }
  absl::Status Finish(Traffic* traffic);
  absl::Duration duration() const { return duration_; }

  // Overwrites the owned values with what was pulled. `included`: whether the version includes the
  // rank's last contribution, `screened`: whether it does not because of what that contains.
  // Requires: all ranks of the group have pulled, so that they hold what
  // they have staged until the whole group holds the version. Returns how many rounds late a change
  // is that was dropped for this reason; 0: none was.
  uint32_t Adopt(bool included, bool screened = false) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether a change that is not late by too many rounds is kept for the next contribution.
  bool keeps_late_changes() const {
    return KeepsChanges(averaging_) && KeptShareOf(averaging_, 1, 1, /*included=*/false).factor > 0;
  }
  // Merges the owned values, which are those of the version, with what they were before: of what
  // the last round has exchanged, with the change since the last contribution (run.proto, Overlap);
  // other values that the version does not change are restored. Requires: the rank has contributed
  // before it adopted.
  void Merge();
  // The owned values are those of version 0, which need not be pulled.
  void AdoptInitial() ABSL_LOCKS_EXCLUDED(mutex_);

  // Receives this rank's values of a state that the shards store with `version`
  // (model/averaging_state.h), in order of positions. Blocks. Requires: nothing is begun. Errors:
  // as RoundsClient::Pull, naming the shard.
  absl::Status PullState(uint32_t version, uint32_t state, std::span<float> values,
                         Traffic* traffic);

  // Stores what is added to the change of the next contribution, in order of positions. Requires:
  // KeepsChanges. Errors: those of the coder.
  absl::Status Carried(std::vector<float>* values) const;
  // The change of the last contribution, which must be staged, or at least begun to be staged by a
  // coder, and, if it was coded, what its code has left out, in order of positions: Adopt will
  // carry a share of one of them. Values that the contribution did not exchange, because it was a
  // fragment, are those that are carried.
  struct Keepable {
    std::vector<float> change;
    std::vector<float> left_out;
    // What the contribution exchanged, in order.
    std::vector<Interval> exchanged;
  };
  // Requires and Errors: as Carried.
  absl::Status WhatMayBeKept(Keepable* keepable) const;
  // Requires: nothing was contributed yet; a value for each position of the rank.
  void SetCarried(std::span<const float> carried);

 private:
  struct Contribution {
    uint32_t round = 0;
    uint32_t fragment = 0;
    // What it has of the shard's parts.
    std::vector<Owned> parts;
    // Result of the coder.
    absl::Status coded;
    // Guarded by mutex_.
    v1::ContributionHeader header;
  };
  struct Shard {
    uint32_t id = 0;
    // The flat positions (model/parameter_index.h) that the shard owns.
    Interval positions;
    // The owned values at these positions. All ranks of the group together cover the shard; a
    // single rank may have no part.
    std::vector<Owned> parts;
    std::unique_ptr<ShardClient> client;
    // The last contribution; nothing: there is none since the last adoption.
    std::optional<Contribution> contribution;
    // The number of the version that was pulled last; nothing: there is none.
    std::optional<uint32_t> version_number;
    // Guarded by mutex_.
    HeldValues held;
    Traffic traffic;

    // ---- Buffers, whose memory is used again
    // What a contribution transfers: the exchanged values or, if contributions are coded, a frame
    // of their changes. Read by other threads only while `held` has it.
    std::vector<float> staged;
    std::string frame;
    // The version with `version_number`. Read by other threads only while `held` has it.
    std::vector<float> version;
    // The exchanged values at the contribution, in a run with overlap.
    std::vector<float> contributed;
    // The values of all parts that Merge stores.
    std::vector<float> merged;
    // What is added to the next change: what earlier frames have left out, and late changes, each
    // with its factor. Empty: zeros.
    std::vector<float> carried;
    // For the exchanged values: the change of the contribution, and what its frame leaves out.
    // Unused with a coder, as `carried` is.
    std::vector<float> change;
    std::vector<float> left_out;
  };
  // Begins `work` for all shards of which the rank has a part.
  void Begin(std::function<absl::Status(Shard&, std::stop_token)> work);
  // Runs `work` for all shards concurrently. The first error is returned, naming the shard, and
  // stops the work for the other shards.
  absl::Status ForEachShard(const std::function<absl::Status(Shard&, std::stop_token)>& work,
                            Traffic* traffic);
  template <typename Message>
  void FillRanges(const std::vector<Owned>& parts, Message& message) const;
  v1::ContributionHeader HeaderOf(const std::vector<Owned>& parts, uint32_t round,
                                  uint64_t samples) const;
  // The parts that a fragment has of those of the shard.
  std::vector<Owned> PartsOf(const Shard& shard, uint32_t fragment) const;
  std::vector<ExchangeUnit> UnitsOf(const std::vector<Owned>& parts) const;
  // Whether contributions have changes that may have to be kept, in buffers of the exchange.
  bool keeps_changes() const { return coder_ == nullptr && KeepsChanges(averaging_); }
  bool HasChange(const Shard& shard) const {
    return keeps_changes() && shard.contribution && !shard.contribution->parts.empty();
  }
  // Calls use(i, p, trained) for each value of `parts`, which are parts of the shard's: i counts
  // them, and p those of all parts; `trained` is false for running statistics.
  template <typename Use>
  void ForEachValue(const Shard& shard, const std::vector<Owned>& parts, const Use& use) const;
  // The buffer for copies of the exchanged values, of which MakeContribution makes the change and
  // what is to be transferred. Errors: those of the codec.
  std::vector<float>& ValuesOf(Shard& shard) const { return up_ ? shard.change : shard.staged; }
  absl::Status MakeContribution(Shard& shard) const;
  // What a contribution transfers.
  std::span<const std::byte> BytesOf(const Shard& shard) const {
    return up_ ? std::as_bytes(std::span(shard.frame)) : std::as_bytes(std::span(shard.staged));
  }
  // Updates what is carried after the adoption of a version, if there is a change. As Adopt.
  uint32_t KeepChange(Shard& shard, bool included, bool screened) const;
  // Computes shard.merged from the owned values, before they are overwritten.
  void PrepareMerge(Shard& shard) const;
  v1::PullRequest RequestOf(const std::vector<Owned>& parts, uint32_t version) const;
  // Receives the version into shard.version.
  absl::Status PullInto(Shard& shard, uint32_t version, std::stop_token stop) const;
  // Adds the frame of the version after the one in shard.version. FailedPrecondition: the shard
  // does not have it.
  absl::Status AddFrame(Shard& shard, std::stop_token stop) const;

  // On the membership thread; does not block.
  void OnRestage(const v1::Restage& restage) ABSL_LOCKS_EXCLUDED(restages_mutex_);
  absl::Status StageAgain(const v1::Restage& restage) ABSL_LOCKS_EXCLUDED(mutex_);

  const v1::RankSlot rank_slot_;
  const std::string lineage_;
  const ParameterIndex& index_;
  const ExchangeUnits* const units_;
  // Nothing for values in fp32.
  const std::optional<v1::Coding> up_;
  const std::optional<v1::Coding> down_;
  const v1::Overlap overlap_;
  const uint32_t fragments_;
  const v1::Averaging averaging_;
  Runtime& runtime_;
  GroupControl& control_;
  ContributionCoder* const coder_;
  std::vector<Shard> shards_;
  // The following must end before the clients are destroyed.
  std::unique_ptr<Cancellation::Registration> on_cancel_;
  // Guards the values that the rank holds while they are copied.
  absl::Mutex mutex_;
  absl::Mutex restages_mutex_;
  // Shard, round and seed of the requests that have no answer yet.
  std::set<std::tuple<uint32_t, uint32_t, bool>> unanswered_ ABSL_GUARDED_BY(restages_mutex_);
  // Their tasks, and tasks that have answered.
  std::vector<std::unique_ptr<BackgroundTask>> restages_ ABSL_GUARDED_BY(restages_mutex_);
  // The result of what was begun last, its traffic, and how long it took.
  absl::Status result_;
  Traffic traffic_;
  absl::Duration duration_;
  std::unique_ptr<BackgroundTask> running_;
};

}  // namespace cadre
