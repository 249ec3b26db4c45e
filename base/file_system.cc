#include "base/file_system.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/file_limit.h"
#include "base/status.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPageBytes = 4096;

// Removes `bytes` from the front of the parts; returns the number of parts that are empty then.
size_t Advance(std::span<iovec> parts, size_t bytes) {
  size_t done = 0;
  while (done < parts.size() && bytes >= parts[done].iov_len) bytes -= parts[done++].iov_len;
  if (bytes > 0) {
    parts[done].iov_base = static_cast<char*>(parts[done].iov_base) + bytes;
    parts[done].iov_len -= bytes;
  }
  return done;
}

class PosixFile : public File {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;
  ~PosixFile() override { close(fd_); }

  absl::Status WritePartsAt(uint64_t offset, std::span<const absl::string_view> parts) override {
    std::vector<iovec> left;
    for (const absl::string_view part : parts) {
      if (!part.empty()) left.push_back({const_cast<char*>(part.data()), part.size()});
    }
    for (std::span<iovec> rest(left); !rest.empty();) {
      const int count = static_cast<int>(std::min<size_t>(rest.size(), IOV_MAX));
      const ssize_t n = pwritev(fd_, rest.data(), count, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return StorageError(errno, "write", path_);
      offset += n;
      rest = rest.subspan(Advance(rest, n));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<char> first,
                                std::span<char> second) const override {
    size_t done = 0;
    while (!first.empty() || !second.empty()) {
      iovec parts[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
      const ssize_t n = preadv(fd_, parts, 2, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return StorageError(errno, "read", path_);
      if (n == 0) break;
      done += n;
      const size_t from_first = std::min(first.size(), static_cast<size_t>(n));
      first = first.subspan(from_first);
      second = second.subspan(static_cast<size_t>(n) - from_first);
    }
    return done;
  }

  absl::StatusOr<uint64_t> Size() const override {
    struct stat info;
    if (fstat(fd_, &info) != 0) return StorageError(errno, "look at", path_);
    return info.st_size;
  }

  void BeginSync(uint64_t offset, uint64_t bytes) override {
    // The last page is left to the write that completes it.
    const uint64_t begin = offset / kPageBytes * kPageBytes;
    const uint64_t end = (offset + bytes) / kPageBytes * kPageBytes;
    if (begin < end) sync_file_range(fd_, begin, end - begin, SYNC_FILE_RANGE_WRITE);
  }

  absl::Status Sync() override {
    if (fsync(fd_) != 0) return StorageError(errno, "sync", path_);
    return absl::OkStatus();
  }

 private:
  const int fd_;
  const std::string path_;
};

class PosixFiles : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return StorageError(errno, "remove", path);
    return OpenFile(path, O_RDWR | O_CREAT | O_EXCL, "create");
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, Access access) override {
    return OpenFile(path, access == Access::kRead ? O_RDONLY : O_RDWR, "open");
  }

  absl::StatusOr<std::unique_ptr<File>> Lock(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return StorageError(errno, "lock", path);
    auto file = std::make_unique<PosixFile>(fd, path);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return file;
    if (errno != EWOULDBLOCK) return StorageError(errno, "lock", path);
    return absl::FailedPreconditionError(absl::StrCat(path, ": is locked"));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return StorageError(errno, "rename to", to);
    return absl::OkStatus();
  }

  absl::Status RemoveFile(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return StorageError(errno, "remove", path);
    return absl::OkStatus();
  }

  absl::Status RemoveFolder(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return StorageError(error.value(), "remove", path);
    return absl::OkStatus();
  }

  absl::Status MakeFolder(const std::string& path) override { return cadre::MakeFolder(path); }
  absl::Status SyncFolder(const std::string& path) override { return cadre::SyncFolder(path); }

  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override {
    std::vector<FolderEntry> entries;
    std::error_code error;
    fs::directory_iterator entry(path, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      std::error_code unknown;
      const bool is_folder = entry->is_directory(unknown);
      // The file may have been removed meanwhile.
      if (unknown == std::errc::no_such_file_or_directory) continue;
      if (unknown) return StorageError(unknown.value(), "look at", entry->path().string());
      entries.push_back({entry->path().filename().string(), is_folder});
    }
    if (error) return StorageError(error.value(), "list", path);
    std::sort(entries.begin(), entries.end(),
              [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
    return entries;
  }

  absl::StatusOr<int64_t> LastWrite(const std::string& path) override {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) {
      // A file of a network file system that was replaced.
      return StorageError(errno == ESTALE ? ENOENT : errno, "look at", path);
    }
    return info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
  }

 private:
  static absl::StatusOr<std::unique_ptr<File>> OpenFile(const std::string& path, int flags,
                                                        absl::string_view what) {
    // A named pipe must not block.
    const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0) return StorageError(errno, what, path);
    return std::make_unique<PosixFile>(fd, path);
  }
};

}  // namespace

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
    case ENFILE:
      return OpenFilesExhausted(message);
    case EMFILE:
      return OpenFilesExhausted(absl::StrCat(message, ": ", DescriptorLimitText()));
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path));
  }
}

absl::Status StorageError(int error, absl::string_view what, absl::string_view path) {
  const absl::Status status = ErrnoStatus(error, what, path);
  const bool lost = error == EIO || error == EUCLEAN || error == EBADMSG;
  return lost ? absl::DataLossError(status.message()) : status;
}

absl::Status MakeFolder(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const auto make = [&] { return mkdir(path.c_str(), 0700) == 0 ? 0 : errno; };
  int error = make();
  if (error == ENOENT && !parent.empty()) {
    CADRE_RETURN_IF_ERROR(MakeFolder(parent.string()));
    error = make();
  }
  std::error_code unknown;
  if (error == EEXIST && std::filesystem::is_directory(path, unknown)) return absl::OkStatus();
  if (error != 0) return ErrnoStatus(error, "make folder", path);
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

FileSystem& PosixFileSystem() {
  static PosixFiles* const files = new PosixFiles();
  return *files;
}

absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(path, Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size > kMaxReadBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", size, " bytes"));
  }
  std::string bytes(size, '\0');
  CADRE_ASSIGN_OR_RETURN(const size_t n, file->ReadAt(0, bytes, {}));
  bytes.resize(n);
  return bytes;
}

}  // namespace cadre
