// What is to be planned: one group's step of one model on one machine, and what the user insists
// on.
//
// Values; thread-compatible. A PlanProblem borrows graph and index.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/plan/machine.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "spec/op_indices.h"
#include "spec/parameter_index.h"
#include "tensor/mesh.h"

namespace cadre {

// Families of plans: the papers' strategies, and all there is.
enum class Strategy {
  kBatch,             // every layer by samples
  kModel,             // every layer with weights by outputs
  kUniformGrid,       // every layer with weights by samples and outputs
  kConvBatchFcGrid,   // convolutions by samples; fully connected layers by samples and outputs
  kConvDomainFcGrid,  // convolutions by samples and rows; fully connected as above
  kGroupHybrid,       // as kConvBatchFcGrid, its grid chosen by the closed form of its paper
  kAuto,              // every layer as it is best
};
// "batch", "model", "uniform-grid", "conv-batch-fc-grid", "conv-domain-fc-grid", "group-hybrid",
// "auto".
absl::string_view StrategyName(Strategy strategy);
std::optional<Strategy> StrategyFromName(absl::string_view name);
const std::vector<Strategy>& AllStrategies();

// What the user pins.
struct Pins {
  // Empty: free. Axes that are not named are free too, if those named do not make all ranks.
  std::vector<Mesh::Axis> mesh;
  // Layer by name, to the index that every axis but `data` is given to: samples, out, in, height.
  std::map<std::string, std::string> layers;

  bool empty() const { return mesh.empty() && layers.empty(); }
};
// Of the spec (cluster.mesh, .model_ranks, .space_ranks, .layer). In a group that is smaller than
// the spec wants, each axis has the largest divisor of the ranks left that is not above what it is
// pinned to. Errors: InvalidArgument for pins that contradict one another, the ranks or the model;
// names the field.
absl::StatusOr<Pins> PinsOf(const v1::RunSpec& spec, const Graph& graph, int ranks);
// "data" -> "samples", "model" -> "out", "model-in" -> "in", "domain" -> "height"; empty: none of
// them.
absl::string_view IndexOfParallelism(absl::string_view parallelism);

// Requires: ranks >= 1.
int LargestDivisor(int ranks, int at_most);

struct PlanProblem {
  const Graph* graph = nullptr;
  const ParameterIndex* index = nullptr;
  int ranks = 1;
  // Of the group's step, over all its ranks.
  int64_t batch = 1;
  int micro_batches = 1;
  // Where no plan fits into memory with so many, more may be tried.
  bool free_micro_batches = false;
  // Tensors of state per parameter.
  int optimizer_states = 1;
  // Weights are held a second time, in bf16.
  bool bf16_weights = false;
  // No update before all buckets are reduced (clipping, LARS).
  bool update_together = false;
  bool overlap = true;
  v1::CollectivePolicy collectives = v1::AUTO;
  std::optional<int64_t> bucket_elements;
  GroupMachine machine;
  Strategy strategy = Strategy::kAuto;
  Pins pins;
};
// From a spec's batch, optimiser, micro-batches, policy and pins.
absl::StatusOr<PlanProblem> ProblemOf(const v1::RunSpec& spec, const Graph& graph,
                                      const ParameterIndex& index, int ranks, GroupMachine machine);

}  // namespace cadre
