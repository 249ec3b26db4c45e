// The sequence write, fsync, rename, fsync of the folder is what POSIX offers for an atomic
// replacement. Without the first fsync a crash may leave the new name with an empty file; without
// the second, a crash may restore the old file although Commit has succeeded.
#include "base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {

absl::StatusOr<AtomicFile> AtomicFile::Create(std::string path) {
  std::string temporary = absl::StrCat(path, ".new");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, "create", temporary);
  return AtomicFile(std::move(path), std::move(temporary), fd);
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      pending_(std::exchange(other.pending_, false)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (pending_) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Append(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write", temporary_);
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

// Network file systems may report a full disk only on close.
absl::Status AtomicFile::Close() {
  if (close(std::exchange(fd_, -1)) != 0) return ErrnoStatus(errno, "close", temporary_);
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return ErrnoStatus(errno, "sync", temporary_);
  CADRE_RETURN_IF_ERROR(Close());
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, "rename to", path_);
  pending_ = false;
  return SyncFolder(std::filesystem::path(path_).parent_path().string());
}

}  // namespace cadre
