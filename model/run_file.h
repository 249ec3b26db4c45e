// Run files: run specs in protobuf text format, with errors by file, line and column. The reader
// expands blocks (model/blocks.h); errors in a layer of a block are located in the block.
//
//   CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpec("demo.textproto"));
//   file.spec.mutable_cluster()->set_groups(3);  // a flag that overrides the file
//   CADRE_RETURN_IF_ERROR(file.Refuse(FindProblems(file.spec)));
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/problem.h"
#include "model/text_message.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// A run spec with the locations of its fields in the file. Movable; thread-compatible.
struct RunSpecFile {
  // The spec without blocks. The caller may change it; locations still refer to the file.
  v1::RunSpec spec;
  // For every layer that was read, its path in the file, such as
  // "model.block[0].layer[2]".
  std::vector<std::string> layer_paths;
  // Locations of the fields.
  TextLocations locations;

  // OK if there are no problems. Errors: InvalidArgument with one "FILE:LINE:COLUMN: field:
  // message" per problem, with the path of the field in the file (see TextLocations::Locate).
  absl::Status Refuse(const std::vector<Problem>& problems) const;
};

// Reads the file without validation (model/validate.h).
// Errors: NotFound, PermissionDenied, ... with the path; InvalidArgument with one
// "FILE:LINE:COLUMN: message" per line, also for invalid blocks. Errors of unknown fields suggest
// the nearest known one.
absl::StatusOr<RunSpecFile> ReadRunSpec(const std::string& path);

// The same for a text; error messages refer to it as `path`.
absl::StatusOr<RunSpecFile> ParseRunSpec(const std::string& path, const std::string& text);

}  // namespace cadre
