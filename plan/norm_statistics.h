// Whether the statistics of a plan's batch norms say anything: those of one value are the value
// itself and a variance of 0, so the output is the shift, and no layer before it learns.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "model/graph.h"
#include "plan/plan.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Into how many near-equal parts a layout divides the input of a batch norm.
struct NormParts {
  int64_t samples = 1;
  int64_t rows = 1;
  int64_t columns = 1;
};

// Whether `layer` is a batch norm whose statistics are those of a rank, and some rank has one value
// per channel in a micro-batch of one of these sizes.
bool HasRankWithOneValue(const GraphLayer& layer, const NormParts& parts,
                         std::span<const int64_t> micro_batches);

// Checks the batch norms whose statistics are those of a rank, which depend on how the plan divides
// samples, rows and columns; model/validate.h checks those of a group. Ranks without values are
// legal. Errors: InvalidArgument, naming the first layer with a rank that has one value per channel
// in a micro-batch.
absl::Status CheckNormStatistics(const v1::RunSpec& spec, const Graph& graph, const Plan& plan);
absl::Status CheckNormStatistics(std::span<const int64_t> micro_batches, const Graph& graph,
                                 const Plan& plan);

}  // namespace cadre
