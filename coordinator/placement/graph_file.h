// Operator graphs as people write them (proto/cadre/v1/placement.proto, text format), with problems
// pointed out by file, line and column.
//
// Thread-safe (pure functions but for the file).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/placement/placement_problem.h"

namespace cadre {

// Errors: NotFound, PermissionDenied, ... with the path; InvalidArgument with one
// "FILE:LINE:COLUMN: field: message" per line, for text that is no graph and for whatever
// FindGraphProblems finds.
absl::StatusOr<PlacementProblem> ReadOperatorGraph(const std::string& path);

// The same for text that is at hand; `path` is what the messages call it.
absl::StatusOr<PlacementProblem> ParseOperatorGraph(const std::string& path,
                                                    const std::string& text);

}  // namespace cadre
