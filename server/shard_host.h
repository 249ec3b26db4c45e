// The shards that one aggregator holds: the ledger's decisions made durable in the store.
//
//   ShardHost           owns the ledger and the store
//     OpenRun, Apply, CloseRun      from the coordinator (aggregator.h)
//     Stage -> Put ... -> Finish    from ranks (service.h)
//     Pull -> Next ...              from ranks
//
// Memory: a version is written piecewise (256 KiB of it, of one group's values and of the version
// before, 512 KiB of means; and one chunk while contributions are checked); a pull holds one
// checked block; staging holds nothing but the caller's chunk.
//
// Thread-safe; each Staging and each VersionPull is used by one thread at a time. OpenRun, Apply
// and CloseRun take turns, and last as long as the disk needs. Everything returned must be
// destroyed before the host.
//
// Refusals come as statuses by name (server/client/refusal.h) and are counted as refused_<name>.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/counters.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/ledger.h"
#include "server/shard_store.h"

namespace cadre {

// One stream's hold on a contribution that is being staged.
struct Staging {
  StageGrant grant;
  std::unique_ptr<BlockFile> file;
};

// The values of a pull, one chunk after the other.
class VersionPull {
 public:
  VersionPull(PullGrant grant, std::unique_ptr<VersionReader> reader);

  // Elements that are still to come.
  uint64_t left() const { return left_; }
  // The next values, as many as fit and are left; returns how many elements.
  absl::StatusOr<size_t> Next(std::span<char> data);

 private:
  const PullGrant grant_;
  const std::unique_ptr<VersionReader> reader_;
  size_t span_ = 0;
  // Elements of the span that have been read.
  uint64_t read_ = 0;
  uint64_t left_;
};

class ShardHost {
 public:
  // Opens the data folder and picks up what is there. Counters are borrowed.
  // Errors: those of ShardStore::Open.
  static absl::StatusOr<std::unique_ptr<ShardHost>> Open(const std::string& data_dir,
                                                         Counters* counters);

  // --- The coordinator's orders; all idempotent

  // ResourceExhausted and the like may be tried again; InvalidArgument not. A version 0 that cannot
  // be made however often it is tried is told in RunOpened.error.
  absl::StatusOr<v1::RunOpened> OpenRun(const v1::OpenRun& open) ABSL_LOCKS_EXCLUDED(turn_, mutex_);
  // What cannot be done however often it is tried is told in Applied.error; a status may be tried
  // again.
  absl::StatusOr<v1::Applied> Apply(const v1::Apply& apply) ABSL_LOCKS_EXCLUDED(turn_, mutex_);
  absl::Status CloseRun(const std::string& run) ABSL_LOCKS_EXCLUDED(turn_, mutex_);
  // What is on disk, for Hello.
  std::vector<v1::ShardState> States() const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- The ranks' streams

  absl::StatusOr<Staging> Stage(const v1::ContributionHeader& header) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes one chunk. True: it was the last, Finish is next.
  absl::StatusOr<bool> Put(Staging& staging, const v1::Chunk& chunk) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the contribution durable. Requires: all chunks are here.
  absl::Status Finish(Staging& staging) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<VersionPull>> Pull(const v1::PullRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ShardHost(std::unique_ptr<ShardStore> store, Counters* counters);

  absl::Status Restore() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Refuse(const Refused& refused) const;
  absl::Status CheckSchema(uint64_t hash) const;
  // Counts a failure of the disk on its way up.
  absl::Status Note(absl::Status status) const;
  void Remove(const std::vector<ContributionKey>& keys);
  absl::StatusOr<VersionFigures> MakeVersion(const ApplyPlan& plan) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status MakeVersionZero(const v1::OpenRun& open, FlatSpan span) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<ShardStore> store_;
  Counters* const counters_;
  // Held through a whole order of the coordinator.
  absl::Mutex turn_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  // The OpenRun by which every run is known, as on disk.
  std::map<std::string, v1::OpenRun> opened_ ABSL_GUARDED_BY(turn_);
};

}  // namespace cadre
