// The operations on files and folders that durable storage needs, as an interface, so that tests
// replace the disk by one in memory that fails on demand (tests/base/memory_file_system.h).
//
// Durability is that of POSIX: data is durable after File::Sync, names (of created, renamed and
// removed files) after SyncFolder of their folder. Rename replaces a name atomically.
//
// Errors are those of StorageError: NotFound, PermissionDenied, ResourceExhausted for a full disk,
// DataLoss for a damaged one, ..., with the path in the message.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// "cannot <what> <path>: ..." with the code of `error`, an errno value.
absl::Status ErrnoStatus(int error, absl::string_view what, absl::string_view path);

// The same, but DataLoss if the device or the file system has lost data: what is stored here has no
// other copy on this machine.
absl::Status StorageError(int error, absl::string_view what, absl::string_view path);

// Creates the folder and its parents unless they exist, for the user of the process alone.
absl::Status MakeFolder(const std::string& path);

// Makes a rename in `folder` durable.
absl::Status SyncFolder(const std::string& folder);

// An open file. It stays usable after its name is removed or replaced. Thread-safe.
class File {
 public:
  virtual ~File() = default;

  // Writes the parts, one after another, at `offset`; a few of them with one system call, unless
  // the kernel splits it.
  virtual absl::Status WritePartsAt(uint64_t offset, std::span<const absl::string_view> parts) = 0;
  absl::Status WriteAt(uint64_t offset, absl::string_view first, absl::string_view second) {
    const absl::string_view parts[] = {first, second};
    return WritePartsAt(offset, parts);
  }
  // Fills `first`, then `second`, from `offset`; returns the number of bytes, which are fewer only
  // at the end of the file.
  virtual absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<char> first,
                                        std::span<char> second) const = 0;
  virtual absl::StatusOr<uint64_t> Size() const = 0;
  // Has these bytes written to the disk while the process goes on, so that Sync has less to wait
  // for. A hint: Sync is still required.
  virtual void BeginSync(uint64_t /*offset*/, uint64_t /*bytes*/) {}
  // Reports the errors of all writes before it, so that the destructor has none to report. After an
  // error the writes since the last success may be lost, although a later call succeeds.
  virtual absl::Status Sync() = 0;
};

enum class Access { kRead, kReadWrite };

struct FolderEntry {
  std::string name;
  bool is_folder = false;
};

// Thread-safe. A file system must outlive the files that it has opened.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates an empty file for the user of the process alone (mode 0600); an existing one loses its
  // name first, so its writers keep their own.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, Access access) = 0;
  // Creates the file if necessary and holds an exclusive lock until the result is destroyed.
  // Errors: FailedPrecondition if another holder has it.
  virtual absl::StatusOr<std::unique_ptr<File>> Lock(const std::string& path) = 0;

  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  // Removes a folder with its content; OK if it does not exist.
  virtual absl::Status RemoveFolder(const std::string& path) = 0;
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Sorted by name.
  virtual absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) = 0;
  // Time of the last write in nanoseconds; only the order of times has a meaning.
  virtual absl::StatusOr<int64_t> LastWrite(const std::string& path) = 0;
};

// The file system of the operating system; never destroyed.
FileSystem& PosixFileSystem();

// Default limit of functions that read whole files.
inline constexpr int64_t kMaxReadBytes = int64_t{1} << 30;

// The whole content. Errors: InvalidArgument for more than kMaxReadBytes.
absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path);

}  // namespace cadre
