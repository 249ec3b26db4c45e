// The host of one aggregator's shards: it applies the ledger's decisions to the files of the store.
//
// clang-format off
//   ShardHost           owns the ledger and the store
//     OpenRun, Apply, CloseRun      from the coordinator (aggregator.h)
//     Stage -> Put ... -> Finish    from ranks (service.h)
//     Pull -> Next ...              from ranks
// clang-format on
//
// Memory: each thread that computes a version takes up to 3 MiB (RoundMean::Stretch), and an Apply
// has Options::threads of them; the codes of
// contributions take 16 bytes of index for each 256 KiB of values (FrameIndex). A pull holds one
// checked block; staging holds only the caller's chunk.
//
// Thread-safe, but each Staging and each VersionPull may be used by only one thread at a time.
// Orders wait for the disk; those for one run exclude one another, those for different runs do not
// wait for one another. All returned objects must be destroyed before the host.
//
// Refusals are returned as statuses by name (server/client/refusal.h) and counted as
// refused_<name>.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/counters.h"
#include "base/file_system.h"
#include "base/hardware.h"
#include "base/rooted_files.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/chunk_view.h"
#include "server/known_runs.h"
#include "server/ledger.h"
#include "server/run_turns.h"
#include "server/shard_store.h"
#include "server/unverified_runs.h"
#include "server/version_pull.h"

namespace cadre {

// One stream's state while it stages a contribution.
struct Staging {
  StageGrant grant;
  std::unique_ptr<BlockFile> file;
};

class ShardHost {
 public:
  struct Options {
    std::string data_dir;
    // Name of the aggregator.
    std::string name;
    // Borrowed.
    Counters* counters = nullptr;
    // Borrowed.
    FileSystem* files = &PosixFileSystem();
    // Through these, checkpoints are read that runs name.
    RootedFiles checkpoint_files = RootedFiles::Unrestricted();
    // Threads that compute a version.
    int threads = UsableCores();
    // As in ShardStore::Open.
    bool archive = false;
    // Whether Open calls Verify for all runs.
    bool verify = true;
    // A new shard is refused unless it fits these bytes without those that are reserved. Optional.
    std::function<absl::StatusOr<int64_t>()> free_bytes = nullptr;
  };

  // Opens the data folder and finds its runs. Errors: those of ShardStore::Open and Verify.
  static absl::StatusOr<std::unique_ptr<ShardHost>> Open(const Options& options);

  // The runs that Verify must make usable, with what was read of their files. Until then their
  // orders, and calls of their ranks, are Unavailable; States has what the heads of their files
  // say.
  std::map<std::string, UnverifiedRuns::Progress> Unverified() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return unverified_.all();
  }
  // Reads all files of the run; damaged ones are set aside or removed. No effect on other runs. May
  // be called again after an error: Cancelled if stopped; those of ShardStore::LoadRun.
  absl::Status Verify(const std::string& run, const std::stop_token& stop = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What is stored: the epoch of an earlier process, durations, failures of the archive.
  const ShardStore& store() const { return *store_; }
  // Not thread-safe. Errors are counted.
  absl::Status SaveEpoch(uint64_t epoch) { return CountError(store_->SaveEpoch(epoch)); }

  // --- The coordinator's orders; all idempotent

  // After ResourceExhausted, Unavailable and DataLoss the caller may retry, after InvalidArgument
  // it must not. If version 0 can never be created, RunOpened.error has the reason. A shard
  // without a version of a run that has one stays without, until an OpenRun makes it hollow
  // (ledger.h).
  absl::StatusOr<v1::RunOpened> OpenRun(const v1::OpenRun& open) ABSL_LOCKS_EXCLUDED(mutex_);
  // Permanent failures are reported in Applied.error. After an error status, and while
  // Applied.missing names groups, the caller may retry, except that after FailedPrecondition the
  // shard is hollow, and the round requires the values that it does not have.
  absl::StatusOr<v1::Applied> Apply(const v1::Apply& apply) ABSL_LOCKS_EXCLUDED(mutex_);
  // The shard of the run as an answer to OpenRun; empty if its files are not known.
  v1::RunOpened Describe(const std::string& run) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Not durable: after a restart OpenRun carries the version of the run.
  void Publish(const v1::Publish& publish) ABSL_LOCKS_EXCLUDED(mutex_);
  // Not durable: after a restart OpenRun carries it, and the keys, which are never stored. Does not
  // wait for an order. The files of contributions that it drops remain until the next order of the
  // run.
  void Fence(const v1::Fence& fence) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CloseRun(const std::string& run) ABSL_LOCKS_EXCLUDED(mutex_);
  // The order will follow. Does not wait for the disk.
  void Leave(const v1::DeleteRun& order) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ledger_.Leave(order.run(), order.lineage());
  }
  // Removes all files of the run and lineage; OK if there are none. Errors: InvalidArgument if they
  // cannot name a file.
  absl::Status DeleteRun(const v1::DeleteRun& order) ABSL_LOCKS_EXCLUDED(mutex_);
  v1::RunReport ReportRun(const std::string& run) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The files that were fetched from another aggregator for an order become the version of the
  // shard, which must be hollow at the version before. The order may be repeated after an error.
  // Requires: it is the run's turn.
  absl::Status AdoptVersion(const v1::CopyShard& order, const std::vector<std::string>& paths)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // An order that changes files of the run by copies() must have its turn.
  RunTurns::Turn BeginTurn(const std::string& run) { return turns_.Begin(run); }
  CopyFiles& copies() { return store_->copies(); }
  // Bytes that the open runs may still need (SpaceOf in server/run_terms.h).
  int64_t ReservedBytes() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return runs_.Reserved();
  }
  // The highest generation received, and the versions on disk, for Hello.
  uint32_t HighestGeneration() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return std::max(ledger_.HighestGeneration(), unverified_.heads().HighestGeneration());
  }
  std::vector<v1::ShardState> States() const ABSL_LOCKS_EXCLUDED(mutex_);
  // FailedPrecondition if the data folder was removed or replaced, or a version of a run that has
  // not ended is damaged. The errors that follow from it are Unavailable: the process should end,
  // and another one begin with what is there.
  absl::Status CheckFiles() const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- The ranks' streams

  // Whether the caller is a rank of the generation that the message names, which its proof shows.
  // The functions below rely on it.
  // `Message`: v1::ContributionHeader or v1::PullRequest.
  template <typename Message>
  absl::Status Authenticate(const Message& message) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Staging> Stage(const v1::ContributionHeader& header) ABSL_LOCKS_EXCLUDED(mutex_);
  // Stores one chunk. Returns whether it was the last; then Finish must follow.
  absl::StatusOr<bool> Put(Staging& staging, const ChunkView& chunk) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the contribution durable. Requires: all chunks are stored. A frame that is malformed is
  // refused and dropped.
  absl::Status Finish(Staging& staging) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<VersionPull>> Pull(const v1::PullRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The file that another aggregator requests, as in ShardStore::OpenFile.
  absl::StatusOr<std::unique_ptr<BlockFile>> OpenFile(const v1::CopyRequest& request) const;

  // Counts and logs an error of reading a version of the run, and returns it. If it is damaged, the
  // process should end (CheckFiles), and the error is Unavailable.
  absl::Status OnReadError(const std::string& run, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ShardHost(std::unique_ptr<ShardStore> store, const Options& options);

  // The run is in the ledger from now on.
  void Restore(const RunTerms& terms, const ShardStore::FoundRun& found)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Refuse(const Refused& refused) const;
  // Counts and logs a disk error, and returns it, or Unavailable if the data folder was removed.
  absl::Status CountError(absl::Status status) const;
  // Removes files of contributions to one run, in a turn of names_.
  void Remove(const std::vector<ContributionKey>& keys) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<KnownRuns::Run> Known(const std::string& run) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return runs_.Find(run);
  }
  // Lets the ledger open the run, in place of one of another lineage, if `known` is that one.
  // Requires: it is the run's turn.
  absl::StatusOr<Opened> BeginRun(const v1::OpenRun& open, const RunTerms& terms,
                                  const std::optional<KnownRuns::Run>& known)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The versions of the run up to this one are published, and what fences have dropped is removed.
  // Requires: it is the run's turn.
  void PublishUntil(const std::string& run, uint32_t version) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reserves space for the shard of a new run. Returns why there is no room; empty if there is.
  std::string Reserve(const v1::OpenRun& open) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<VersionPull>> PullFrame(PullGrant grant, uint64_t from);
  absl::StatusOr<VersionStats> MakeVersion(const ApplyPlan& plan) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status MakeVersionZero(const v1::OpenRun& open, const RunTerms& terms)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<ShardStore> store_;
  Counters* const counters_;
  // The files that checkpoint.from of a spec may name.
  const RootedFiles checkpoint_files_;
  const std::function<absl::StatusOr<int64_t>()> free_bytes_;
  // An order has the turn of its run while it changes the files of the run.
  RunTurns turns_;
  // Turns for the names of the files of a run's contributions; after turns_, before mutex_.
  RunTurns names_;
  mutable absl::Mutex mutex_;
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  // None of these is in the ledger.
  UnverifiedRuns unverified_ ABSL_GUARDED_BY(mutex_);
  // The error of the first damaged version that was found.
  absl::Status damage_ ABSL_GUARDED_BY(mutex_);
  KnownRuns runs_ ABSL_GUARDED_BY(mutex_);
  // By run, contributions that fences have dropped, whose files remain.
  std::map<std::string, std::vector<ContributionKey>> fenced_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
