// Small files that are replaced as a whole: their content, then its CRC32C. In later formats the
// content begins with "CDRFMT" and the two digits of its number (file_format.h).
//
// Thread-safe, but two threads must not write the same file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"

namespace cadre {

// Replaces the file atomically and durably.
absl::Status WriteChecked(FileSystem& files, const std::string& path, absl::string_view content);
// The content, at least one byte. Errors: DataLoss for a damaged file; those of
// CheckFormat.
absl::StatusOr<std::string> ReadChecked(FileSystem& files, const std::string& path);

}  // namespace cadre
