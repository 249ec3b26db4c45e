// The command `cadre plan`: what a group would do, without a cluster. Prints the plan of a run spec
// for so many workers and, for a link that the caller describes, what its communication would cost
// under every policy.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cli/console.h"
#include "cli/options.h"
#include "cli/spec_file.h"

namespace cadre {

struct PlanOptions {
  // The run spec's file.
  std::string spec;
  // Ranks of the group.
  uint32_t workers = 0;
  // In place of what the spec says. Its `ranks` are the workers'.
  SpecFlags flags;
  std::optional<uint32_t> batch;
  // The link: seconds a message, bytes a second each way, seconds to add a byte. Both of the first
  // two or neither.
  std::optional<double> alpha;
  std::optional<double> bandwidth;
  std::optional<double> gamma;
  // Floating-point operations that a worker does in a second; nothing: computing is not predicted.
  std::optional<double> flops;
  // Elements at which a bucket is full; nothing: by the link.
  std::optional<uint64_t> bucket_elements;
};

// Errors: InvalidArgument naming the flag that is missing or cannot be.
absl::Status CheckPlanOptions(const PlanOptions& options);

// Returns the exit code. Requires: CheckPlanOptions is OK.
int ShowPlan(const GlobalOptions& global, const PlanOptions& options, const Console& console);

}  // namespace cadre
