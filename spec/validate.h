// Whether a run spec says something that can be run: every rule that proto/cadre/v1/run.proto
// states, checked before anything is started.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/problem.h"

namespace cadre {

// Limits that catch typing errors before they become threads, records or memory.
inline constexpr uint32_t kMostGroups = 4096;
inline constexpr uint32_t kMostRanksPerGroup = 4096;
inline constexpr uint32_t kMostAggregators = 4096;
inline constexpr uint32_t kMostBatch = 1 << 20;
// Each rank keeps the order of two epochs, four bytes a sample.
inline constexpr uint32_t kMostSyntheticSamples = 1 << 28;
// Of the centres of all classes, which each worker keeps: 1 GiB.
inline constexpr int64_t kMostCentreElements = 1 << 28;
// Of the inputs that one rank loads for a step: 8 GiB.
inline constexpr int64_t kMostBatchElements = int64_t{1} << 31;

// Everything that is wrong, in the order of the spec's fields; empty: nothing is. Looks at the spec
// alone and not at files (spec/data_check.h does). Of a model only the first wrong layer is told,
// since the shapes behind it are unknown.
std::vector<Problem> FindProblems(const v1::RunSpec& spec);

// Errors: InvalidArgument with one "field: message" per line.
absl::Status ValidateRunSpec(const v1::RunSpec& spec);

}  // namespace cadre
