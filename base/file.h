// Reading and atomically replacing whole files.
//
// Thread-safe, except that a path must not have concurrent writers: they would share "<path>.new".
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/rooted_files.h"

namespace cadre {

// Errors: NotFound, PermissionDenied, ..., with the path in the message; InvalidArgument for
// anything but a regular file, and for more than `max_bytes`; those of `files`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = kMaxReadBytes,
                                     const RootedFiles& files = RootedFiles::Unrestricted());

// At most `max_bytes` from the beginning of a file. Errors: as ReadFile.
absl::StatusOr<std::string> ReadBeginning(const std::string& path, int64_t max_bytes,
                                          const RootedFiles& files = RootedFiles::Unrestricted());

// A regular file that is open for reading.
struct RegularFile {
  // The caller must close it.
  int fd = -1;
  // Size when it was opened.
  int64_t bytes = 0;
};

// Does not block on named pipes. Errors: NotFound, PermissionDenied, ..., with the path in the
// message; InvalidArgument for anything but a regular file; those of `files`.
absl::StatusOr<RegularFile> OpenRegularFile(const std::string& path,
                                            const RootedFiles& files = RootedFiles::Unrestricted());

// Writes a file with these bytes, which replaces `path` atomically (base/atomic_file.h).
// Errors: as AtomicFile::Append and Commit; ResourceExhausted for a full disk.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes,
                                 FileSystem& files = PosixFileSystem());
}  // namespace cadre
