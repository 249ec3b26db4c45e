// Validates run specs by all rules of proto/cadre/v1/run.proto, before a run starts.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/problem.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Limits of a spec as a message. They keep what the coordinator stores and sends for a run far
// below the size limit of a message (base/rpc/grpc_channel.h).
inline constexpr size_t kMaxSpecBytes = 1 << 20;
// A model of programs with a loop of their own lists its parameters (about 80 bytes each), which a
// mixture of experts has tens of thousands of.
inline constexpr size_t kMaxOpaqueSpecBytes = 8 << 20;
inline constexpr size_t kMaxSpecText = 4 << 10;
// Limits against typing errors.
inline constexpr uint32_t kMaxGroups = 4096;
inline constexpr uint32_t kMaxRanksPerGroup = 4096;
inline constexpr uint32_t kMaxAggregators = 4096;
inline constexpr uint32_t kMaxBatch = 1 << 20;
// Each rank stores the order of two epochs, four bytes per sample.
inline constexpr uint32_t kMaxSyntheticSamples = 1 << 28;
// Limit of the class centers that each worker stores: 1 GiB.
inline constexpr int64_t kMaxCenterElements = 1 << 28;
// Limit of the inputs that one rank loads for a step: 8 GiB.
inline constexpr int64_t kMaxBatchElements = int64_t{1} << 31;

// All problems, in the order of the spec's fields; of a spec that exceeds its limit or
// kMaxSpecText, only that. Does not read files (model/formats/data_check.h does). Only the first
// invalid layer of a model is reported, since later shapes are then unknown.
std::vector<Problem> FindProblems(const v1::RunSpec& spec);

// Errors: InvalidArgument with one "field: message" per line.
absl::Status ValidateRunSpec(const v1::RunSpec& spec);

}  // namespace cadre
