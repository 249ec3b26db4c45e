// Copies of the shards of other aggregators (Averaging.copies), and the copying of versions between
// aggregators.
//
//   <data_dir>/<run>/copy-<shard>/version-<v>, outer-<v>, frame-<v>
//                          the files of version v as the shard's aggregator has them, byte for byte
//
// A version is fetched file by file into temporary files. Once all are synced, they get their
// names, that of the values last, so every version of a copy is complete. A copy keeps the version
// before its newest until the next one is fetched, because the coordinator may not have committed
// the newest. A shard that has lost its files fetches a version from its copy in the same way, into
// the folder of the run.
//
// Thread-safe, but two threads must not fetch for the same shard.
//
// Errors: NotFound for a file that is not stored, DataLoss with the path for damage,
// ResourceExhausted with the path for a full disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/block_file.h"
#include "server/data_folder.h"
#include "tensor/interval.h"

namespace cadre {

// Sends one request to the aggregator that the order names, and passes its replies to `on_reply`
// until that fails. Unless the status is OK, the file was not received completely.
using CopyTransport =
    std::function<absl::Status(const v1::CopyShard& order, const v1::CopyRequest& request,
                               const std::function<absl::Status(const v1::CopyReply&)>& on_reply)>;

class CopyFiles {
 public:
  // Whether a fetched version becomes a copy, or that of the aggregator's own shard.
  enum class Target { kCopy, kShard };

  // The folder is borrowed.
  explicit CopyFiles(const DataFolder& folder) : folder_(folder) {}

  // The file that the request names, of a copy or, with kShard, of the aggregator's own shard.
  // Requires: the request names a run that is stored.
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(const v1::CopyRequest& request,
                                                  Target target) const;
  // The versions of the copy with their digests; their blocks are checked once. A damaged version
  // is left out.
  std::map<uint32_t, uint64_t> Find(const std::string& run, uint32_t shard)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Number of versions of copies that are known to be stored for the run. Does not wait for the
  // disk.
  int64_t CountVersions(const std::string& run) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds the versions of the copy that the aggregator holds for the run to its answer.
  void List(const v1::OpenRun& open, v1::RunOpened& opened) ABSL_LOCKS_EXCLUDED(mutex_);
  // Prepares the copy for a version: removes all others but the newest.
  absl::Status Begin(const v1::CopyShard& order) ABSL_LOCKS_EXCLUDED(mutex_);
  // Fetches the version of the order into temporary files. Returns the paths that they are to get,
  // in the order of the renames. Requires: Begin for a copy; `span` is that of the shard.
  absl::StatusOr<std::vector<std::string>> Fetch(const v1::CopyShard& order, Interval span,
                                                 Target target,
                                                 const CopyTransport& transport) const;
  // Gives files that were fetched their names.
  absl::Status Publish(const std::vector<std::string>& paths) const;
  // The version of the order was published as one of a copy.
  void Add(const v1::CopyShard& order) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes files that were fetched and are not used.
  void Discard(const std::vector<std::string>& paths) const;
  // The files of the run are removed or renamed.
  void Forget(const std::string& run) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The folder in which the copies of a run are, and the name of the copy in it.
  DataFolder FolderOf(const std::string& run) const { return {folder_.files, folder_.Run(run)}; }
  static std::string NameOf(uint32_t shard);
  std::string PathOf(const std::string& run, uint32_t shard, uint32_t version,
                     v1::CopyRequest::File file, Target target) const;

  absl::Status FetchFile(const v1::CopyShard& order, v1::CopyRequest::File file,
                         const std::string& path, uint64_t max_bytes,
                         const CopyTransport& transport) const;
  // Checks the digest and the positions of the values that were fetched.
  absl::StatusOr<v1::Apply> CheckValues(const v1::CopyShard& order, Interval span,
                                        const std::string& path) const;

  const DataFolder& folder_;
  // Not held while files are read or removed.
  mutable absl::Mutex mutex_;
  // By run and shard, what was found, or fetched.
  std::map<std::pair<std::string, uint32_t>, std::map<uint32_t, uint64_t>> known_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
