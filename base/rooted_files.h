// Opens files whose paths other parties choose, beneath folders that the operator of a process
// permits.
//
//   CADRE_ASSIGN_OR_RETURN(const RootedFiles files, RootedFiles::Open("--data-root", {"/data"}));
//   CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile("/data/train.idx", limit, files));
//
// The kernel resolves a path (openat2 with RESOLVE_BENEATH), so neither ".." nor a link leads out
// of the roots. A link is followed if its target is beneath a root, the same or another one; every
// other link is refused. Files are opened in the same step. Functions that return a path of a
// folder resolve it once: from then on, the folders on its way must only be changed by trusted
// users. Parties that only choose paths cannot change them.
//
// Thread-safe; copies share the open roots.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

class RootedFiles {
 public:
  // Permits every path: for files that the user of the process names.
  static const RootedFiles& Unrestricted();
  // Permits paths beneath the existing folders `roots`; none: no path at all. `flag` is the name of
  // the flag that lists them, for messages. Errors: those of opening a folder; FailedPrecondition
  // if openat2 is not available (Linux before 5.6, or a seccomp filter that denies it).
  static absl::StatusOr<RootedFiles> Open(std::string flag, const std::vector<std::string>& roots);

  // Opens a path with flags as of open(2), O_CLOEXEC included by this function. The caller must
  // close the result. Errors, here and below: PermissionDenied, naming the flag, for a path that is
  // not beneath a root or that leads out of it; otherwise those of the file system.
  absl::StatusOr<int> OpenDescriptor(const std::string& path, int flags) const;
  // The path of an existing file or folder without links beneath its root. The root is named as in
  // `path`: other hosts may resolve a root that is a link differently.
  absl::StatusOr<std::string> Resolve(const std::string& path) const;
  // The path, without any links, of a folder that is created with its parents unless it exists.
  absl::StatusOr<std::string> MakeFolder(const std::string& path) const;

 private:
  struct Root;

  RootedFiles() = default;
  // Opens what follows a root's path in `rest`, or the target beneath a root to which it leads by a
  // link. Returns the descriptor, or -1 with errno set.
  int OpenFollowing(const Root& root, const std::vector<std::string>& rest, int flags) const;
  // Calls `use` with the roots that may contain the path, and its remainder, until one succeeds.
  template <typename Result, typename Use>
  absl::StatusOr<Result> InRoot(const std::string& path, Use use) const;
  absl::Status Error(int error, absl::string_view what, const std::string& path) const;

  // Empty: unrestricted.
  std::string flag_;
  std::vector<std::shared_ptr<const Root>> roots_;
};

}  // namespace cadre
