// The strategies of two papers (all but the last: Gholami et al. 2018; the last: Joo, Youn 2021).
// For a network, a number of workers and a batch: the grid of ranks that each strategy chooses, and
// its cost by the formulas of its paper.
//
// The costs serve for comparison with plans. The formulas do not model overlap.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lab/grid_cost.h"
#include "plan/cost/communication_cost.h"
#include "plan/cost/group_hybrid.h"
#include "plan/cost/network_shape.h"
#include "plan/search/strategy.h"

namespace cadre {

// The cost of one layer.
struct PaperLayer {
  std::string name;
  // Position in the graph.
  int number = 0;
  // The number of parts of each index, such as "samples/16 outputs/32".
  std::string parallelism;
  CommunicationCost communication;
  double seconds = 0;
  double state_bytes = 0;
  double activation_bytes = 0;
  // Fully connected layers of group-hybrid only: whether splitting the layer reduces the time.
  std::optional<bool> worth_splitting;
};

// The cost of a strategy.
struct PaperCost {
  Strategy strategy = Strategy::kBatch;
  // The grid used; for group-hybrid g x N / g.
  Grid grid;
  // The best number of rows of the grid by the paper's closed form, not rounded: P_r* of
  // uniform-grid and conv-batch-fc-grid, g* of group-hybrid.
  std::optional<double> closed_form_rows;
  // Communication of the rank that sends the most words.
  CommunicationCost communication;
  double communication_seconds = 0;
  // 0 if the workers' speed is unknown.
  double compute_seconds = 0;
  // Memory for weights, gradients and momentum; and for inputs that layers keep for backward.
  double state_bytes = 0;
  double activation_bytes = 0;
  // Layers with weights.
  std::vector<PaperLayer> layers;
  // Whether every part of the batch has at least one sample.
  bool enough_samples = true;

  double step_seconds() const { return compute_seconds + communication_seconds; }
  double memory_bytes() const { return state_bytes + activation_bytes; }
};

// The cost on the best grid that fits into memory: P_r divides the workers, P_c is at most B if
// possible, and seconds (words if the link is unknown) are minimal; if equal, the smallest P_r.
// `rows`, if set, is P_r instead. Group-hybrid uses its rounded closed form. Errors:
// InvalidArgument for rows that do not divide the workers or that the strategy does not allow;
// ResourceExhausted, with the number of bytes missing, if no grid fits into memory. Requires: not
// kAuto.
absl::StatusOr<PaperCost> CostOf(Strategy strategy, const HybridProblem& problem,
                                 std::optional<int64_t> rows = std::nullopt);

}  // namespace cadre
