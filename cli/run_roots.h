// The folders that the processes of a local run may use: those that the run file names, and those
// to which links in them lead. The user who starts the processes has written the run file and owns
// the links.
//
// Thread-safe (pure functions over files).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Values of --data-root: distinct folders. At most kMaxRoots of them are due to links: if these
// lead to more folders, folders that contain several of them are named instead.
inline constexpr size_t kMaxRoots = 200;
std::vector<std::string> DataRoots(const v1::Data& data);

// Values of --checkpoint-root: distinct folders. Creates the directory that the run writes to,
// because a root must exist. Errors: as MakeFolder.
absl::StatusOr<std::vector<std::string>> CheckpointRoots(const v1::Checkpoint& checkpoint);

}  // namespace cadre
