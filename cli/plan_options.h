// The options of `cadre plan`, as flags give them.
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
#include "plan/search/plan_problem.h"

namespace cadre {

// More than any cluster has: larger numbers are typing errors.
inline constexpr uint32_t kMaxPlannedWorkers = 100'000;
inline constexpr uint32_t kMaxPlannedBatch = 1 << 24;

// The units of numbers, and what they mean, are those of PlanRequest (plan/report).
struct PlanOptions {
  // The run file, or the name of a model of the zoo.
  std::string spec;
  // Ranks of the group.
  uint32_t workers = 0;
  // Replace values of the run file. `ranks` is not used: `workers` replaces it.
  SpecFlags flags;
  std::optional<uint32_t> batch;
  // `alpha` and `bandwidth` are given together or not at all.
  std::optional<double> alpha;
  std::optional<double> bandwidth;
  std::optional<double> gamma;
  std::optional<double> flops;
  std::optional<uint64_t> memory;
  // File of a cluster profile, in place of link and flops.
  std::optional<std::string> profile;
  std::optional<uint64_t> bucket_elements;
  std::optional<Strategy> strategy;
  std::vector<Strategy> compare;
  std::optional<uint32_t> groups;
  // File of a table of epochs.
  std::optional<std::string> epochs;
  // Samples per epoch; nothing: the run file's, if it states them.
  std::optional<uint64_t> samples;
  std::optional<bool> sensitivity;

  bool link_given() const { return bandwidth.has_value(); }
};

// Errors: InvalidArgument naming the flag that is missing or out of range.
absl::Status CheckPlanOptions(const PlanOptions& options);

// "uniform-grid". Errors: InvalidArgument listing the names.
absl::StatusOr<Strategy> ParseStrategy(absl::string_view name);
// "data,model,auto", or "all". `data` is an alias of batch, `hybrid` of group-hybrid. Duplicates
// are dropped.
absl::StatusOr<std::vector<Strategy>> ParseStrategies(absl::string_view names);

}  // namespace cadre
