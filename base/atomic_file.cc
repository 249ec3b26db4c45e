// The sequence write, fsync, rename, fsync of the folder is what POSIX offers for an atomic
// replacement. Without the first fsync a crash may leave the new name with an empty file; without
// the second, a crash may restore the old file although Commit has succeeded.
#include "base/atomic_file.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {

absl::StatusOr<AtomicFile> AtomicFile::Create(std::string path, FileSystem& files) {
  std::string temporary = absl::StrCat(path, ".new");
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(temporary));
  return AtomicFile(std::move(path), std::move(temporary), files, std::move(file));
}

AtomicFile::AtomicFile(std::string path, std::string temporary, FileSystem& files,
                       std::unique_ptr<File> file)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      files_(&files),
      file_(std::move(file)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      files_(other.files_),
      file_(std::move(other.file_)),
      bytes_(other.bytes_),
      pending_(std::exchange(other.pending_, false)) {}

AtomicFile::~AtomicFile() {
  if (pending_) files_->RemoveFile(temporary_).IgnoreError();
}

absl::Status AtomicFile::Append(absl::string_view bytes) {
  CADRE_RETURN_IF_ERROR(file_->WriteAt(bytes_, bytes, ""));
  bytes_ += bytes.size();
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  CADRE_RETURN_IF_ERROR(file_->Sync());
  file_.reset();
  CADRE_RETURN_IF_ERROR(files_->Rename(temporary_, path_));
  pending_ = false;
  return files_->SyncFolder(std::filesystem::path(path_).parent_path().string());
}

}  // namespace cadre
