// How many blocks of layers a plan must recompute (plan/recomputation.h) to fit into the memory of
// its ranks.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/interval.h"

namespace cadre {

// The exact memory of a rank is computed from its tape, whose moves involve all ranks. That of all
// ranks takes seconds for so many; callers estimate it for more.
inline constexpr int kMaxExactRanks = 32;

struct MemoryFit {
  bool fits = true;
  // PlannedMemory on the device of the rank that needs most.
  int64_t bytes = 0;
};

// The plan as it is. `limits`: the bytes of each rank; 0: unknown. Requires: CheckPlan is OK;
// one limit per rank.
MemoryFit FitOf(const v1::RunSpec& spec, const Graph& graph, const ParameterIndex& index,
                const Plan& plan, v1::Cluster::Device device, std::span<const int64_t> limits);

// Sets plan.recomputed to the first of `blocks`, as few as fit; all of them if no number fits.
// Computes the memory of all ranks a few times, and that of one rank about log2(blocks) times.
MemoryFit RecomputeAsNeeded(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, v1::Cluster::Device device,
                            std::span<const int64_t> limits, std::span<const Interval> blocks,
                            Plan& plan);

}  // namespace cadre
