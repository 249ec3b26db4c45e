// A run spec as a file: read, changed by flags, checked; refused with file, line, column and field.
//
// Thread-safe (pure functions over files).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct SpecFlags {
  // Each replaces what the file says when it is given.
  std::optional<uint32_t> groups;
  std::optional<uint32_t> ranks;
  std::optional<uint32_t> aggregators;
  // The workers will be on this machine: the data files are checked too, and what the spec leaves
  // to the cluster (how many groups, ranks, aggregators) is filled in.
  bool here = true;
};

// Errors: NotFound for a missing file; InvalidArgument with one "FILE:LINE:COLUMN: field: message"
// per line of the status's message.
absl::StatusOr<v1::RunSpec> LoadSpec(const std::string& path, const SpecFlags& flags);

// Prints the refusals of LoadSpec, each on its line as it is; returns the exit code.
ExitCode FailSpec(const Console& console, const absl::Status& status);

}  // namespace cadre
