// Readers of this module take paths from users and from other hosts. They refuse everything but
// regular files, because a read from a pipe or a device may block or never end, and they count the
// bytes that arrive instead of trusting the size of the file, which may grow and which is 0 for
// files of /proc.
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/status.h"

namespace cadre {
namespace {

absl::Status TooLarge(const std::string& path, int64_t max_bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": has more than the ", max_bytes, " bytes that are allowed"));
}

}  // namespace

absl::StatusOr<RegularFile> OpenRegularFile(const std::string& path, const RootedFiles& files) {
  // Without O_NONBLOCK, opening a named pipe would block until it has a writer.
  CADRE_ASSIGN_OR_RETURN(const int fd, files.OpenDescriptor(path, O_RDONLY | O_NONBLOCK));
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat status {};
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  std::move(close_fd).Cancel();
  return RegularFile{.fd = fd, .bytes = status.st_size};
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes,
                                     const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path, files));
  const int fd = file.fd;
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (file.bytes > max_bytes) return TooLarge(path, max_bytes);
  std::string bytes;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", path);
    if (n == 0) return bytes;
    bytes.append(buffer, n);
    // The file may have grown since it was opened.
    if (std::ssize(bytes) > max_bytes) return TooLarge(path, max_bytes);
  }
}

absl::StatusOr<std::string> ReadBeginning(const std::string& path, int64_t max_bytes,
                                          const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path, files));
  absl::Cleanup close_fd = [&file] { close(file.fd); };
  std::string bytes(max_bytes, '\0');
  int64_t done = 0;
  while (done < max_bytes) {
    const ssize_t n = read(file.fd, bytes.data() + done, max_bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", path);
    if (n == 0) break;
    done += n;
  }
  bytes.resize(done);
  return bytes;
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes,
                                 FileSystem& files) {
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, files));
  CADRE_RETURN_IF_ERROR(file.Append(bytes));
  return file.Commit();
}

}  // namespace cadre
