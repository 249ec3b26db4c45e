#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/status.h"

namespace cadre {

absl::Status ErrnoStatus(int error, absl::string_view what, absl::string_view path) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path));
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  std::string bytes;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", path);
    if (n == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes) {
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  CADRE_RETURN_IF_ERROR(file.Append(bytes));
  return file.Commit();
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "make folder", path);
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& folder) {
  const std::string name = folder.empty() ? "." : folder;
  const int fd = open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open folder", name);
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (fsync(fd) != 0) return ErrnoStatus(errno, "sync folder", name);
  return absl::OkStatus();
}

}  // namespace cadre
