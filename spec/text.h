// Run specs as people write them: protobuf text format in a file, with problems pointed out by
// file, line and column. Blocks (spec/blocks.h) are replaced by their layers on reading; a problem
// of a layer that came from a block is pointed out in the block.
//
//   CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpec("demo.textproto"));
//   file.spec.mutable_cluster()->set_groups(3);  // a flag that overrides the file
//   CADRE_RETURN_IF_ERROR(file.Refuse(FindProblems(file.spec)));
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/problem.h"
#include "spec/text_message.h"

namespace cadre {

// A run spec that remembers where in its file each field stands. Movable; thread-compatible.
struct RunSpecFile {
  // Without blocks. May be changed by the caller: fields are then still looked up where the file
  // has them.
  v1::RunSpec spec;
  // For every layer of the spec's model as it was read, its path in the file, such as
  // "model.block[0].layer[2]".
  std::vector<std::string> layer_paths;
  // Where each field of the file stands.
  TextPlaces places;

  // "FILE:LINE:COLUMN: field: message", the field as the file has it. For a field that the file
  // does not have, the place of the nearest message around it that it has; the beginning of the
  // file if there is none.
  std::string Locate(const Problem& problem) const;

  // OK without problems. Errors: InvalidArgument with one located problem per line.
  absl::Status Refuse(const std::vector<Problem>& problems) const;

  // The problem, its field as the file has it.
  Problem InFile(const Problem& problem) const;
};

// Reads the file; does not check what it says (spec/validate.h does).
// Errors: NotFound, PermissionDenied, ... with the path; InvalidArgument with one
// "FILE:LINE:COLUMN: message" per line, also for blocks that cannot be expanded. An unknown field
// is answered with the nearest known one.
absl::StatusOr<RunSpecFile> ReadRunSpec(const std::string& path);

// The same for text that is at hand; `path` is what the messages call it.
absl::StatusOr<RunSpecFile> ParseRunSpec(const std::string& path, const std::string& text);

}  // namespace cadre
