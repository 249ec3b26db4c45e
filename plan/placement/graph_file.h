// Operator graphs in text format (proto/cadre/v1/placement.proto), with errors by file, line and
// column.
//
// Thread-safe (pure functions but for the file).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "plan/placement/placement_problem.h"

namespace cadre {

// Errors: NotFound, PermissionDenied, ... with the path; InvalidArgument with one
// "FILE:LINE:COLUMN: field: message" per line, for malformed text and for the problems
// that FindGraphProblems finds.
absl::StatusOr<PlacementProblem> ReadOperatorGraph(const std::string& path);

// The same for a text; `path` stands for the file in messages.
absl::StatusOr<PlacementProblem> ParseOperatorGraph(const std::string& path,
                                                    const std::string& text);

}  // namespace cadre
