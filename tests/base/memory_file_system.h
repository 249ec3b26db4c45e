// A file system in memory that fails on demand: crashes of the process or of the host, failed
// syncs and reads, a full or read-only disk, flipped bits, removed folders.
//
// After a crash of the host, of the writes to a file since its last successful sync any subset
// survives, each as a whole, and of the changes of a folder's names since its last sync a prefix.
// After a failed sync the writes before it are readable, but no later sync makes them durable.
//
// Paths are absolute. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"

namespace cadre {

class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  // ---- Faults

  // The process ends. Its open files and locks are released, whatever happens to their objects.
  void EndProcess();
  // The host crashes: also what is not durable is lost, unless `survives` returns true for it.
  void CrashHost(const std::function<bool()>& survives);
  // After `changes` further changes all calls fail with Unavailable and change nothing, as if the
  // process had been killed there, until EndProcess or CrashHost.
  void StopAfter(uint64_t changes);
  void DoNotStop();
  bool stopped() const;
  // Bytes that writes can add to files; afterwards they fail with ResourceExhausted.
  void SetFreeBytes(uint64_t bytes);
  // Whether the next sync of a file fails with EIO.
  void FailNextSync(bool fails = true);
  // Syncs of files whose path contains `part` succeed without effect: a disk that lies.
  void IgnoreSyncs(const std::string& part);
  // Requires: the file exists and has this bit.
  void FlipBit(const std::string& path, uint64_t bit);
  // Reads of the file fail with this errno value; 0: they succeed again. Requires: it exists.
  void FailReads(const std::string& path, int error);
  // Changes fail with EROFS.
  void SetReadOnly(bool read_only);
  bool Exists(const std::string& path) const;
  // A copy of what is durable, and the return to it. Requires: no process runs.
  struct Image;
  std::shared_ptr<const Image> Copy() const;
  void RollBack(const Image& image);

  // ---- FileSystem
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, Access access) override;
  absl::StatusOr<std::unique_ptr<File>> Lock(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveFile(const std::string& path) override;
  absl::Status RemoveFolder(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override;
  absl::StatusOr<int64_t> LastWrite(const std::string& path) override;

 private:
  class OpenFile;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  // New meanings of some names of a folder; null: none.
  using NameChange = std::vector<std::pair<std::string, NodePtr>>;
  // A file or a folder, as seen by the process and as on the disk.
  struct Node {
    bool is_folder = false;
    int64_t last_write = 0;
    // Contents of a file.
    std::string bytes;
    std::string durable_bytes;
    struct Write {
      uint64_t offset = 0;
      std::string bytes;
    };
    std::vector<Write> unsynced;
    bool locked = false;
    int read_error = 0;
    // Contents of a folder.
    std::map<std::string, NodePtr> names;
    std::map<std::string, NodePtr> durable_names;
    std::vector<NameChange> unsynced_names;
  };

  static NodePtr Clone(const Node& node);
  // Counts a change; fails if the process is stopped.
  absl::Status Change() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NodePtr Find(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<NodePtr> FolderOf(const std::string& path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetNames(Node& folder, NameChange change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Revert(Node& node, const std::function<bool()>& survives)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  const NodePtr root_;
  // Number of the running process; files that an earlier one has opened are closed.
  uint64_t process_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<uint64_t> changes_left_ ABSL_GUARDED_BY(mutex_);
  uint64_t free_bytes_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  bool read_only_ ABSL_GUARDED_BY(mutex_) = false;
  bool fail_next_sync_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::string> ignore_syncs_of_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
