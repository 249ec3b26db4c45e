// A root is a descriptor, and a path beneath it is resolved by the kernel relative to that
// descriptor. The only decision of this file is which root a path may belong to. It compares the
// leading components of the path as text with those of the root, as the operator wrote it and
// without links; a ".." in the remainder is left to the kernel.
//
// The kernel refuses links that are absolute or lead out of their root. Data sets are often folders
// of links into another root, so in this case the link's target is looked up without being opened
// (O_PATH), and its path without links is opened beneath the root that contains it. The kernel
// decides again, and follows no link in this second step, so a concurrent change cannot lead out
// either. Only links are followed in this way: the operator has put them into a root, whereas any
// party that chooses a path may write "..".
#include "base/rooted_files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_system.h"
#include "base/status.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// Returns the descriptor, or -1 with errno set. `resolve`: further restrictions.
int OpenBeneath(int root, const std::string& path, int flags, uint64_t resolve = 0) {
  open_how how = {};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | resolve;
  // A concurrent rename may make the kernel unable to decide whether ".." stays beneath the root.
  for (int attempt = 0;; ++attempt) {
    const int64_t fd = syscall(SYS_openat2, root, path.c_str(), &how, sizeof(how));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR) || attempt == 100) {
      return static_cast<int>(fd);
    }
  }
}

// The path of an open file; empty, with errno set, on failure.
std::string PathOf(int fd) {
  char path[PATH_MAX];
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  const ssize_t size = readlink(link.c_str(), path, sizeof(path));
  return size <= 0 ? "" : std::string(path, size);
}

// The components of an absolute path; relative paths begin at the working directory.
std::vector<std::string> ComponentsOf(const std::string& path) {
  std::error_code error;
  std::vector<std::string> components;
  for (const fs::path& component : fs::absolute(path, error)) {
    const std::string name = component.string();
    if (name != "/" && name != "." && !name.empty()) components.push_back(name);
  }
  return components;
}

// What follows `folder` in `path`; nullopt if `path` does not begin with it.
std::optional<std::vector<std::string>> After(const std::vector<std::string>& folder,
                                              const std::vector<std::string>& path) {
  if (path.size() < folder.size()) return std::nullopt;
  if (!std::equal(folder.begin(), folder.end(), path.begin())) return std::nullopt;
  return std::vector<std::string>(path.begin() + std::ssize(folder), path.end());
}

std::string Joined(const std::vector<std::string>& components, size_t count) {
  if (count == 0) return ".";
  return absl::StrJoin(components.begin(), components.begin() + count, "/");
}

}  // namespace

struct RootedFiles::Root {
  ~Root() { close(fd); }

  int fd = -1;
  std::string name;
  // Its path as given, and without links.
  std::vector<std::string> given;
  std::vector<std::string> resolved;
};

const RootedFiles& RootedFiles::Unrestricted() {
  static const RootedFiles* const files = new RootedFiles();
  return *files;
}

absl::StatusOr<RootedFiles> RootedFiles::Open(std::string flag,
                                              const std::vector<std::string>& roots) {
  RootedFiles files;
  files.flag_ = std::move(flag);
  for (const std::string& path : roots) {
    const int fd = open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, absl::StrCat("open ", files.flag_), path);
    const auto root = std::make_shared<Root>();
    root->fd = fd;
    root->name = path;
    root->given = ComponentsOf(path);
    root->resolved = ComponentsOf(PathOf(fd));
    files.roots_.push_back(root);
    const int same = OpenBeneath(fd, ".", O_PATH | O_DIRECTORY);
    if (same < 0) return files.Error(errno, absl::StrCat("open ", files.flag_), path);
    close(same);
  }
  return files;
}

absl::Status RootedFiles::Error(int error, absl::string_view what, const std::string& path) const {
  switch (error) {
    case ENOSYS:
    case EPERM:
      return absl::FailedPreconditionError(
          absl::StrCat("cannot ", what, " ", path, ": ", flag_,
                       " requires the system call openat2, which this kernel (before Linux 5.6) "
                       "or a seccomp filter does not permit"));
    case EXDEV:
    case ELOOP:
      return absl::PermissionDeniedError(
          absl::StrCat("cannot ", what, " ", path, ": it leads out of ", flag_,
                       " by '..' or by a link; links are followed within ", flag_, " only"));
    default:
      return ErrnoStatus(error, what, path);
  }
}

template <typename Result, typename Use>
absl::StatusOr<Result> RootedFiles::InRoot(const std::string& path, Use use) const {
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("a path contains a zero byte");
  }
  if (roots_.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": not opened, because ", flag_, " names no folder that runs may use"));
  }
  const std::vector<std::string> components = ComponentsOf(path);
  absl::Status error =
      absl::PermissionDeniedError(absl::StrCat(path, ": is not beneath a folder of ", flag_));
  for (const auto& root : roots_) {
    std::optional<std::vector<std::string>> rest = After(root->given, components);
    if (!rest) rest = After(root->resolved, components);
    if (!rest) continue;
    absl::StatusOr<Result> result = use(*root, *rest);
    if (result.ok()) return result;
    error = result.status();
  }
  return error;
}

int RootedFiles::OpenFollowing(const Root& root, const std::vector<std::string>& rest,
                               int flags) const {
  const std::string path = Joined(rest, rest.size());
  const int fd = OpenBeneath(root.fd, path, flags);
  if (fd >= 0 || errno != EXDEV) return fd;
  const bool climbs = std::find(rest.begin(), rest.end(), "..") != rest.end();
  const int target = climbs ? -1 : openat(root.fd, path.c_str(), O_PATH | O_CLOEXEC);
  if (target >= 0) {
    const std::vector<std::string> resolved = ComponentsOf(PathOf(target));
    close(target);
    for (const auto& other : roots_) {
      const std::optional<std::vector<std::string>> beneath = After(other->resolved, resolved);
      if (!beneath) continue;
      const int followed =
          OpenBeneath(other->fd, Joined(*beneath, beneath->size()), flags, RESOLVE_NO_SYMLINKS);
      if (followed >= 0) return followed;
    }
  }
  errno = EXDEV;
  return -1;
}

absl::StatusOr<int> RootedFiles::OpenDescriptor(const std::string& path, int flags) const {
  if (flag_.empty()) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, "open", path);
    return fd;
  }
  return InRoot<int>(
      path, [&](const Root& root, const std::vector<std::string>& rest) -> absl::StatusOr<int> {
        const int fd = OpenFollowing(root, rest, flags);
        if (fd < 0) return Error(errno, "open", path);
        return fd;
      });
}

absl::StatusOr<std::string> RootedFiles::Resolve(const std::string& path) const {
  if (flag_.empty()) return path;
  return InRoot<std::string>(
      path,
      [&](const Root& root, const std::vector<std::string>& rest) -> absl::StatusOr<std::string> {
        const int fd = OpenFollowing(root, rest, O_PATH);
        if (fd < 0) return Error(errno, "open", path);
        const absl::Cleanup close_fd = [fd] { close(fd); };
        std::string resolved = PathOf(fd);
        if (resolved.empty()) return ErrnoStatus(errno, "resolve", path);
        const auto beneath = After(root.resolved, ComponentsOf(resolved));
        // A link has led to another root, or the root was moved after it was opened.
        if (!beneath) return resolved;
        const std::vector<std::string> given = ComponentsOf(path);
        std::vector<std::string> named(given.begin(), given.end() - std::ssize(rest));
        named.insert(named.end(), beneath->begin(), beneath->end());
        return absl::StrCat("/", absl::StrJoin(named, "/"));
      });
}

// Creates one folder after the other, each in a parent that the kernel has found beneath the root.
absl::StatusOr<std::string> RootedFiles::MakeFolder(const std::string& path) const {
  if (flag_.empty()) {
    CADRE_RETURN_IF_ERROR(cadre::MakeFolder(path));
    return path;
  }
  return InRoot<std::string>(
      path,
      [&](const Root& root, const std::vector<std::string>& rest) -> absl::StatusOr<std::string> {
        int parent = OpenBeneath(root.fd, ".", O_PATH | O_DIRECTORY);
        absl::Cleanup close_parent = [&parent] { close(parent); };
        for (size_t count = 1; parent >= 0 && count <= rest.size(); ++count) {
          const std::string folder = Joined(rest, count);
          int next = OpenBeneath(root.fd, folder, O_PATH | O_DIRECTORY);
          if (next < 0 && errno == ENOENT) {
            if (mkdirat(parent, rest[count - 1].c_str(), 0700) != 0 && errno != EEXIST) {
              return Error(errno, "make folder", path);
            }
            next = OpenBeneath(root.fd, folder, O_PATH | O_DIRECTORY);
          }
          if (next < 0) return Error(errno, "make folder", path);
          close(std::exchange(parent, next));
        }
        if (parent < 0) return Error(errno, "make folder", path);
        std::string resolved = PathOf(parent);
        if (resolved.empty()) return ErrnoStatus(errno, "resolve", path);
        return resolved;
      });
}

}  // namespace cadre
