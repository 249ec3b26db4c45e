// Whole files: read, and written so that a reader sees the old or the new, never half of either.
//
// Thread-safe, but a path takes one writer at a time: writers of one path share its "<path>.new".
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// What ReadFile takes into memory where its caller names no bound.
inline constexpr int64_t kMostReadBytes = int64_t{1} << 30;

// Errors: NotFound, PermissionDenied, ..., with the path in the message; InvalidArgument for what
// is no regular file, and for one of more than `most_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t most_bytes = kMostReadBytes);

// A file that is open for reading.
struct RegularFile {
  // Its holder closes it.
  int fd = -1;
  // When it was opened.
  int64_t bytes = 0;
};

// Never waits: a named pipe is refused and not read.
// Errors: NotFound, PermissionDenied, ..., with the path in the message; InvalidArgument for what
// is no regular file.
absl::StatusOr<RegularFile> OpenRegularFile(const std::string& path);

// Writes beside the target, syncs, renames over it, syncs the folder.
// Errors: ResourceExhausted for a full disk. After an error the target is as it was; or, if only
// the last sync failed, new but perhaps not durable.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);

// The status of errno after a system call on `path`.
absl::Status ErrnoStatus(int error, absl::string_view what, absl::string_view path);

// Makes the folder and its parents; fine if it is there.
absl::Status MakeFolder(const std::string& path);

// Makes a rename in `folder` durable.
absl::Status SyncFolder(const std::string& folder);

}  // namespace cadre
