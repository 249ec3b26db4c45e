// The folders of an image data set with one folder per class.
//
// Thread-safe (pure functions over files).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rooted_files.h"

namespace cadre {

// Calls `visit` with each entry of the folder, in no order, until it returns an error.
absl::Status VisitEntries(
    const std::string& folder, const RootedFiles& files,
    absl::FunctionRef<absl::Status(const std::filesystem::directory_entry&)> visit);

// The names of the folders in `folder`, in ascending order: class i is the i-th. Files are
// ignored. Errors: NotFound, PermissionDenied, ..., with the path in the message, also for an entry
// that may be a folder, such as a link whose target does not exist.
absl::StatusOr<std::vector<std::string>> ListClassFolders(
    const std::string& folder, const RootedFiles& files = RootedFiles::Unrestricted());

// The first of `present` that is not in `known`; null if all are. Another split may lack classes of
// the training split, but must not have additional ones, which would have no number. Requires: both
// are in ascending order.
const std::string* FindUnknownClass(const std::vector<std::string>& present,
                                    const std::vector<std::string>& known);

}  // namespace cadre
