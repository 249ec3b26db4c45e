// The folders of a data set of images that has one for each class.
//
// Thread-safe (pure functions of what lies on the disk).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre {

// The names of the folders in `folder`, ascending: class i is the i-th. Files are left out, and
// what cannot be looked at.
// Errors: NotFound, PermissionDenied, ..., with the path in the message.
absl::StatusOr<std::vector<std::string>> ListClassFolders(const std::string& folder);

// The first of `present` that `known` lacks; null: none. A split may lack classes that training
// has, but what it has must be among them, or one number would stand for two classes.
// Requires: both ascending.
const std::string* FindUnknownClass(const std::vector<std::string>& present,
                                    const std::vector<std::string>& known);

}  // namespace cadre
