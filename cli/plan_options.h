// What `cadre plan` is asked, as flags say it.
//
// Plain values and pure functions; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/spec_file.h"
#include "coordinator/plan/plan_problem.h"

namespace cadre {

// Enough for any cluster; a typing error is more.
inline constexpr uint32_t kMostPlannedWorkers = 100'000;
inline constexpr uint32_t kMostPlannedBatch = 1 << 24;

struct PlanOptions {
  // The run spec's file, or the name of a model of the zoo.
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
  // Of a worker.
  std::optional<uint64_t> memory;
  // A cluster profile's file, in place of link and speed.
  std::optional<std::string> profile;
  // Elements at which a bucket is full; nothing: by the link.
  std::optional<uint64_t> bucket_elements;
  // Nothing: whatever is best.
  std::optional<Strategy> strategy;
  // Strategies to put side by side; empty: none.
  std::vector<Strategy> compare;
  // To choose how many groups the workers make: the most that are tried.
  std::optional<uint32_t> groups;
  // A table of epochs, and samples of a pass where the spec does not tell.
  std::optional<std::string> epochs;
  std::optional<uint64_t> samples;
  // Whether to search what would change the answer; nothing: if that takes no time.
  std::optional<bool> sensitivity;

  bool link_given() const { return bandwidth.has_value(); }
};

// Errors: InvalidArgument naming the flag that is missing or cannot be.
absl::Status CheckPlanOptions(const PlanOptions& options);

// "uniform-grid". Errors: InvalidArgument with the names that there are.
absl::StatusOr<Strategy> ParseStrategy(absl::string_view name);
// "data,model,auto"; "all" is all. `data` is batch, `hybrid` group-hybrid. Each once.
absl::StatusOr<std::vector<Strategy>> ParseStrategies(absl::string_view names);

}  // namespace cadre
