// A rank's exchange with the shards of the aggregators: stages (uploads durably) the values that
// the rank owns, and pulls its part of a committed version, in background tasks. The owned values
// are read only by BeginStage and Adopt, and written only by Adopt and Merge. At any time the rank
// holds what it staged last or the version that it has adopted (member/held_values.h), and
// stages it again at a shard that has lost its files when the coordinator requests it
// (v1::Restage).
//
// In a run with coded contributions or versions, or with fragments (model/coding.h,
// ExchangesUnits), the owned values must be whole units (member/regroup.h). What is contributed and
// what is carried over from one contribution to the next: member/shard_values.h. A version is
// pulled as the frames of all versions since the one that the rank has, or as a whole if the shard
// does not keep all of them.
//
// A contribution is coded by the exchange, from the owned values, or by a coder where the weights
// are (member/contribution_coder.h); of the owned values only those of version 0 are then read.
//
// Borrows its arguments and the owned values; `progress` advances with every chunk and every unit.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
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
#include "member/shard_values.h"
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
  // contribution: the version; the contribution, which is a frame or, in fp32, may be a copy of the
  // owned values; what is carried; with overlap the contributed values. An upper bound with
  // fragments. Requires: no coder.
  int64_t ExpectedBytes() const;
  // The memory that is allocated now.
  int64_t AllocatedBytes() const;

  // False: the run does not average.
  bool has_shards() const { return !shards_.empty(); }

  // Begins to stage the owned values as this rank's part of the group's contribution; with a
  // `fragment` other than 0, those in it. With a coder: the change that it has taken. If Finish
  // returns OK, they are durable on every shard. Errors: as RoundsClient::Stage, naming the shard.
  // Requires: without overlap, the owned values do not change before Adopt.
  void BeginStage(uint32_t round, uint64_t samples, uint32_t fragment = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins to stage the owned values as this rank's part of `version` itself, which no group has
  // adopted yet (v1::ContributionHeader.seed). Requires: they do not change before Finish.
  void BeginStageVersion(uint32_t version) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins to receive this rank's part of `version`. The owned values do not change. `included`:
  // whether the version includes the rank's last contribution, `screened`: whether it does not
  // because of what that contains. What is carried follows from it.
  void BeginPull(uint32_t version, bool included = false, bool screened = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What was begun last, which must end before anything else begins. Finish waits for the end
  // and adds the traffic; afterwards, `duration` is how long it took.
  bool begun() const { return running_ != nullptr; }
  bool finished() const { return running_->done(); }
  absl::Status Finish(Traffic* traffic);
  absl::Duration duration() const { return duration_; }

  // Overwrites the owned values with what was pulled. Requires: all ranks of the group have pulled,
  // so that they hold what they have staged until the whole group holds the version. Returns how
  // many rounds late a change is that was dropped for this reason; 0: none was.
  uint32_t Adopt() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether a change that is not late by too many rounds is kept for the next contribution.
  bool keeps_late_changes() const {
    return KeepsChanges(form_.averaging) &&
           KeptShareOf(form_.averaging, 1, 1, /*included=*/false).factor > 0;
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

  // ---- What is added to the change of the next contribution
  // Requires for all of it: KeepsChanges. Of values there is one for each position that the rank
  // exchanges, in order.
  int64_t elements() const;
  using LateChange = ShardValues::LateChange;
  // Copies the values, unless `weighted` is true as they were contributed. Errors: those of the
  // coder. Requires: with a coder, `weighted`.
  absl::Status Carried(std::span<float> values, bool weighted = true) const;
  // Where the values are those of late changes: the count is the round.
  std::vector<UpdateCount> late() const;
  // The values are those that were contributed. Requires: nothing was contributed yet.
  void SetCarried(std::vector<float> carried, std::span<const LateChange> late = {});
  // The round of the last contribution, until BeginPull has its decision. Requires: it has been
  // staged, or a coder has it.
  std::optional<uint32_t> undecided_round() const;
  // The positions of the changes that WhatMayBeKept copies: the count is the round.
  std::vector<UpdateCount> Changes() const;
  // Copies what follows from the undecided contribution: the change if no version includes it and,
  // if it is coded, what its code has left out if one does. Other positions have what is carried,
  // late changes as they were contributed, and nothing left out. `left_out` is empty unless
  // contributions are coded. Errors: as Carried.
  absl::Status WhatMayBeKept(std::span<float> change, std::span<float> left_out) const;

  // Ends what was begun, before the values above are read for the last time. Frees what is not
  // needed for that.
  void Stop();

 private:
  struct Shard {
    Shard(uint32_t shard, const ExchangeForm& form, std::vector<Owned> parts)
        : id(shard), values(form, std::move(parts)) {}

    const uint32_t id;
    // What is transferred, and the version, are read by other threads only while `held` has them.
    ShardValues values;
    std::unique_ptr<ShardClient> client;
    // Result of the coder.
    absl::Status coded;
    // That of the last contribution; guarded by mutex_, as `held` is.
    v1::ContributionHeader header;
    HeldValues held;
    Traffic traffic;
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
  // As WhatMayBeKept. Requires: a coder.
  absl::Status CopyOut(std::span<float> change, std::span<float> left_out) const;
  v1::PullRequest RequestOf(const std::vector<Owned>& parts, uint32_t version) const;
  // Receives the version into shard.values.
  absl::Status PullInto(Shard& shard, uint32_t version, std::stop_token stop) const;
  // Adds the frame of the next version. FailedPrecondition: the shard does not have it.
  absl::Status AddFrame(Shard& shard, std::stop_token stop) const;

  // On the membership thread; does not block.
  void OnRestage(const v1::Restage& restage) ABSL_LOCKS_EXCLUDED(restages_mutex_);
  absl::Status StageAgain(const v1::Restage& restage) ABSL_LOCKS_EXCLUDED(mutex_);

  const v1::RankSlot rank_slot_;
  const std::string lineage_;
  const ExchangeForm form_;
  Runtime& runtime_;
  GroupControl& control_;
  TrainerProgress& progress_;
  ContributionCoder* const coder_;
  std::deque<Shard> shards_;
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
