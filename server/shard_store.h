// The durable files of an aggregator.
//
//   <data_dir>/.lock                       held while the store is open
//   <data_dir>/.identity                   name of the aggregator, and the highest epoch (number of
//                                          a start of the coordinator) that it has received
//   <data_dir>/<run>/run                   the run's OpenRun, and whether it has ended
//   <data_dir>/<run>/version-<v>           this shard's part of version v (a block file), and the
//                                          Apply that made it
//   <data_dir>/<run>/outer-<v>             states of the outer optimizer at version v (a block
//                                          file), if its order has an outer optimizer or coded
//                                          versions; those of version 0 are from a checkpoint
//   <data_dir>/<run>/frame-<v>             the code of the change from version v - 1 to v, if the
//                                          run has one; without it, the version is pulled
//   <data_dir>/<run>/stage-<round>-<group>-<generation>-<rank>
//                                          a contribution; the blocks are its chunks. Of a seed
//                                          (ledger.h) the name ends in -seed
//   <data_dir>/<run>/copy-<shard>/...      the copy of another shard (copies/copy_files.h)
//   <data_dir>/<run>/order-<v>, archived-stage-...
//                                          what replays the run (archive.h), if it is kept
//   <data_dir>/.old-<run>-<lineage>        a run whose id was reused with another lineage (id of
//                                          the model's history)
//
// Versions and run files appear atomically (temporary file, fsync, rename). A damaged version is
// logged, renamed to version.damaged and never served; a damaged contribution is removed.
//
// Thread-safe, but two threads must not write the same version or the same run file.
//
// Errors: ResourceExhausted with the path for a full disk, DataLoss with the path for damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "base/http/histogram.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/block_file.h"
#include "server/copies/copy_files.h"
#include "server/data_folder.h"
#include "server/frame_files.h"
#include "server/ledger.h"
#include "server/round_mean.h"
#include "server/version_files.h"

namespace cadre {

class ShardStore {
 public:
  // Produces the values at positions first, first + 1, ...
  using Fill = std::function<absl::Status(int64_t first, std::span<float> out)>;

  struct InitialVersion {
    Fill values;
    // States in the order of ShardStateNames; null: zeros. Empty: the version has no states.
    std::vector<Fill> states;
    // Whether there are states of an outer optimizer.
    bool has_outer = false;
  };

  struct FoundRun {
    v1::OpenRun open;
    bool closed = false;
    // Oldest first.
    std::vector<StoredVersion> versions;
    std::vector<FoundContribution> contributions;
    // FindRuns: the bytes that LoadRun will read, if the run has not ended.
    uint64_t unread_bytes = 0;
  };

  // Creates the folder if necessary; one without a name becomes that of aggregator `name`. Errors:
  // PermissionDenied or another file error if the folder cannot be written; FailedPrecondition if
  // another process has locked it, or it belongs to another aggregator, whose files stay unchanged.
  // The file system must outlive the store and the files that it opens. `threads` make the mean of
  // a round. `archive`: keeps the contributions of which versions are made (server/archive.h).
  static absl::StatusOr<std::unique_ptr<ShardStore>> Open(FileSystem& files,
                                                          const std::string& data_dir,
                                                          const std::string& name, int threads = 1,
                                                          bool archive = false);
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  // The epoch saved before Open; 0 if there is none.
  uint64_t epoch() const { return epoch_; }
  absl::Status SaveEpoch(uint64_t epoch);

  // FailedPrecondition if the folder, or the folder of a run, was removed or replaced since Open.
  absl::Status CheckFolder() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The runs, with the versions that the heads of their files describe, and without contributions.
  // Changes no file, except that a folder whose run file is damaged is set aside.
  absl::StatusOr<std::vector<FoundRun>> FindRuns() ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads all files of a run that FindRuns has found, and checks their blocks if it has not ended.
  // Complete contributions are synced. Damaged files are set aside or removed; all others stay
  // after an error.
  absl::StatusOr<FoundRun> LoadRun(const std::string& run, const BlockFile::OnRead& on_read)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether a run or lineage may name a file: [A-Za-z0-9._-], at most 100 characters, no leading
  // dot.
  static bool IsFileName(absl::string_view name);
  // The run of a folder, which a store may use. Errors: DataLoss for a damaged file.
  static absl::StatusOr<FoundRun> ReadRun(FileSystem& files, const std::string& run_folder);

  absl::Status SaveRun(const v1::OpenRun& open, bool closed) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ArchiveRun(const std::string& run, const std::string& lineage)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes folders that ArchiveRun has set aside, except those of the newest runs.
  void RemoveOldSetAside() ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes the files of the run, also if they are archived; OK if there are none. A run of another
  // lineage is kept.
  absl::Status RemoveRun(const std::string& run, const std::string& lineage)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // WriteInitial and WriteMean write a version stretch by stretch and return its statistics, which
  // are stored with it.
  absl::StatusOr<VersionStats> WriteInitial(const RunTerms& terms, const InitialVersion& initial);
  // Checks what it reads. After an error, the contributions or what VerifyBefore checks may be
  // damaged. A version that may be made again is archived when it is published.
  absl::StatusOr<VersionStats> WriteMean(const ApplyPlan& plan);
  // If contributions are kept: those of a version that is published. After an error, which is
  // logged and kept in archive_failures_, the run cannot be replayed.
  void Archive(const std::string& run, const v1::Apply& order, uint64_t digest)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Checks the version before that of the plan, or the one that it restores, and its states, if the
  // plan requires them.
  absl::Status VerifyBefore(const ApplyPlan& plan);
  const VersionFiles& versions() const { return versions_; }
  const FrameFiles& frames() const { return frames_; }
  CopyFiles& copies() { return copies_; }
  // The file that another aggregator requests. Errors: InvalidArgument; NotFound if it is not
  // stored, or belongs to another lineage; DataLoss if it is damaged.
  absl::StatusOr<std::unique_ptr<BlockFile>> OpenFile(const v1::CopyRequest& request) const;
  // A version that was copied from another aggregator has its files: reads what they have.
  absl::StatusOr<StoredVersion> AddVersion(const std::string& run, uint32_t version);
  // Its frame is kept (frame_files.h).
  void RemoveVersion(const std::string& run, uint32_t version) { versions_.Remove(run, version); }
  // Renames it as a damaged version.
  void DiscardVersion(const std::string& run, uint32_t version);

  // The contribution's file: a new one if `fresh`, else the existing one.
  absl::StatusOr<std::unique_ptr<BlockFile>> OpenContribution(const ContributionKey& key,
                                                              const v1::ContributionHeader& header,
                                                              int64_t elements, bool fresh);
  // Makes the contribution durable.
  absl::Status SyncContribution(BlockFile& file);
  // Durations of SyncContribution since Open.
  const Histogram& contribution_syncs() const { return contribution_syncs_; }
  // By run, why a version could not be archived, and which one is the last to be replayed: the
  // first failure since Open.
  std::map<std::string, std::string> archive_failures() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return archive_failures_;
  }
  absl::Status VerifyContribution(const ContributionKey& key) const;
  void RemoveContribution(const ContributionKey& key);

 private:
  ShardStore(FileSystem& files, std::string data_dir, std::string name, int threads, bool archive,
             std::unique_ptr<File> lock);
  // Reads or creates the folder's identity.
  absl::Status Identify();

  // Removes a folder of a run, its run file last: without it, FindRuns would leave the folder
  // alone.
  absl::Status RemoveRunFolder(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<FoundRun> LoadRunFile(const std::string& run) const;
  absl::StatusOr<FoundRun> FindRun(const std::string& run) const;
  absl::Status LoadFile(const std::string& name, const BlockFile::OnRead& on_read, FoundRun* found);
  absl::StatusOr<FoundContribution> CheckContribution(const std::string& path, bool verify,
                                                      const BlockFile::OnRead& on_read);
  // The contributions of the plan; indexes frames that have none.
  absl::StatusOr<RoundMean::Files> OpenContributions(const ApplyPlan& plan);
  // Prepares what the plan's round does beyond averaging: opens the states of the version before,
  // and creates temporary files.
  absl::StatusOr<RoundUpdate> OpenUpdate(const ApplyPlan& plan, const v1::Apply& before);
  // Makes the new states durable, and the frame.
  absl::Status FinishUpdate(const ApplyPlan& plan, const VersionStats& stats, RoundUpdate& update);

  FileSystem& files_;
  const DataFolder folder_;
  const std::string name_;
  const int threads_;
  const bool archive_;
  uint64_t epoch_ = 0;
  const std::unique_ptr<File> lock_;
  VersionFiles versions_{folder_};
  FrameFiles frames_{folder_};
  CopyFiles copies_{folder_};
  Histogram contribution_syncs_;
  mutable absl::Mutex mutex_;
  // Runs with a run file.
  std::set<std::string> runs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> archive_failures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
