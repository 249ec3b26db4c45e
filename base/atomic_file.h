// A file that is written incrementally and replaces its target atomically.
//
//   CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
//   CADRE_RETURN_IF_ERROR(file.Append(bytes));  // any number of times
//   CADRE_RETURN_IF_ERROR(file.Commit());
//
// Until Commit the bytes are in "<path>.new", which the destructor removes. A path must not have
// concurrent writers. Movable; thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"

namespace cadre {

class AtomicFile {
 public:
  // The file system must outlive the object. Errors: as ErrnoStatus, here and below.
  static absl::StatusOr<AtomicFile> Create(std::string path, FileSystem& files = PosixFileSystem());
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  const std::string& path() const { return path_; }

  // Errors: ResourceExhausted for a full disk. After an error the object can only be destroyed.
  absl::Status Append(absl::string_view bytes);

  // Syncs the file, renames it to `path`, syncs the folder. Requires: called once. After an error
  // the target is unchanged or, if only the last sync failed, replaced but possibly not durable.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, FileSystem& files,
             std::unique_ptr<File> file);

  std::string path_;
  std::string temporary_;
  FileSystem* files_;
  std::unique_ptr<File> file_;
  uint64_t bytes_ = 0;
  // Whether the destructor removes `temporary_`.
  bool pending_ = true;
};

}  // namespace cadre
