// Whether the ranks of a plan have memory for the layers that are placed on them.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Compares the PlannedMemory of each rank with its limit in bytes; 0: unknown. Errors:
// ResourceExhausted for the first rank that exceeds its limit, naming the largest layer on it.
// Requires: CheckPlan is OK; one limit per rank.
absl::Status CheckPlacedMemory(const v1::RunSpec& spec, const Graph& graph,
                               const ParameterIndex& index, const Plan& plan,
                               v1::Cluster::Device device, std::span<const int64_t> limits);

}  // namespace cadre
