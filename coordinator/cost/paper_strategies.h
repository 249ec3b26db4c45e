// The papers' strategies with names: for a network, a number of workers and a batch, the grid that
// each takes, and what it costs by its own formulas.
//
//   batch               all layers by samples (Gholami et al. 2018)
//   model               all layers by outputs
//   uniform-grid        all layers on one grid P_r x P_c of outputs and samples
//   conv-batch-fc-grid  convolutions by samples over all, fully connected layers on a grid
//   conv-domain-fc-grid convolutions by rows and samples, fully connected layers, on one grid
//   group-hybrid        convolutions by samples, fully connected layers in groups (Joo, Youn 2021)
//
// These are the yardstick that plans are held against; nothing is executed by them. Communication
// is exposed as a whole: the formulas know no overlap.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/cost/communication_cost.h"
#include "coordinator/cost/grid_cost.h"
#include "coordinator/cost/group_hybrid.h"
#include "coordinator/cost/network_shape.h"

namespace cadre {

enum class PaperStrategy {
  kBatch,
  kModel,
  kUniformGrid,
  kConvBatchFcGrid,
  kConvDomainFcGrid,
  kGroupHybrid,
};
// As in the table above.
absl::string_view PaperStrategyName(PaperStrategy strategy);
std::optional<PaperStrategy> PaperStrategyFromName(absl::string_view name);
const std::vector<PaperStrategy>& AllPaperStrategies();

struct PaperLayer {
  std::string name;
  // Position in the graph.
  int number = 0;
  // What its indices are cut over: the mesh's parts of each.
  std::string parallelism;
  CommunicationCost communication;
  double seconds = 0;
  double state_bytes = 0;
  double activation_bytes = 0;
  // Of group-hybrid's fully connected layers: whether this one alone is worth cutting.
  std::optional<bool> worth_cutting;
};

struct PaperCost {
  PaperStrategy strategy = PaperStrategy::kBatch;
  // Of group-hybrid: g x N / g.
  Grid grid;
  // What the closed form says, not rounded: P_r* of uniform-grid and conv-batch-fc-grid, g* of
  // group-hybrid.
  std::optional<double> closed_form;
  // Of the rank that sends most.
  CommunicationCost communication;
  double communication_seconds = 0;
  // 0 where the workers' speed is not known.
  double compute_seconds = 0;
  // Weights, gradients and momentum; and what layers took in and keep for backward.
  double state_bytes = 0;
  double activation_bytes = 0;
  // Layers with weights.
  std::vector<PaperLayer> layers;
  // There is at least a sample for every part into which the batch is cut.
  bool enough_samples = true;

  double step_seconds() const { return compute_seconds + communication_seconds; }
  double memory_bytes() const { return state_bytes + activation_bytes; }
};

// The best grid whose P_r divides the workers, by seconds (by words where the link is not known),
// the smaller P_r where it is all the same, P_c at most B where that can be, and within memory; or
// the grid with `rows`. Group-hybrid takes its closed form, rounded.
// Errors: InvalidArgument for rows that do not divide the workers or that the strategy leaves no
// choice of; ResourceExhausted when no grid fits into memory, with the bytes that are missing.
absl::StatusOr<PaperCost> CostOf(PaperStrategy strategy, const HybridProblem& problem,
                                 std::optional<int64_t> rows = std::nullopt);

}  // namespace cadre
