// The input of the search: a model, a group's batch and hardware, and the choices that the user has
// fixed.
//
// Values; thread-compatible. A PlanProblem borrows graph and index.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/layer_placement.h"
#include "model/op_indices.h"
#include "model/parameter_index.h"
#include "plan/search/hardware_model.h"
#include "plan/search/strategy.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/interval.h"
#include "tensor/mesh.h"

namespace cadre {

// Choices that the user has fixed.
struct Pins {
  // Empty: free. Axes that are not listed are free too unless the listed ones use all ranks.
  std::vector<Mesh::Axis> mesh;
  // By layer name: the index that every axis but `data` splits: samples, out, in or height.
  std::map<std::string, std::string> layers;
  // By layer: the coordinates at which it is placed. Empty if the run does not place layers.
  LayerCoordinates at;

  bool empty() const { return mesh.empty() && layers.empty() && at.empty(); }
};
// Reads the pins of a spec (cluster.mesh, .model_ranks, .space_ranks, .layer). In a group with
// fewer ranks than the spec requests, `stage`, then `model` and then `space` have the largest
// divisor of the remaining ranks that does not exceed their pinned size, and coordinates are scaled
// to the new sizes. Errors: InvalidArgument, naming the
// field, for pins that contradict one another, the ranks or the model.
absl::StatusOr<Pins> PinsOf(const v1::RunSpec& spec, const Graph& graph, int ranks);

// The largest divisor of `ranks` that is at most `at_most`. Requires: ranks >= 1.
int LargestDivisor(int ranks, int at_most);

struct PlanProblem {
  // Null if the problem was not made from a spec.
  std::shared_ptr<const v1::RunSpec> spec;
  const Graph* graph = nullptr;
  const ParameterIndex* index = nullptr;
  int ranks = 1;
  // Samples of a step, over all ranks of the group.
  int64_t batch = 1;
  int micro_batches = 1;
  // How stages play them, and on which devices.
  v1::Cluster::Pipeline pipeline = v1::Cluster::PIPELINE_UNSPECIFIED;
  v1::Cluster::Device device = v1::Cluster::DEVICE_UNSPECIFIED;
  // State tensors per parameter.
  int optimizer_states = 1;
  // Bytes per owned value of the exchange with the aggregators, as far as they are in the memory
  // that limits the plan: of a rank that is alone, and of one of several.
  double exchange_alone = 0;
  double exchange_shared = 0;
  // Ranks hold a second copy of the weights, in bf16.
  bool bf16_weights = false;
  // Whether updates must wait until all buckets are reduced (clipping, LARS).
  bool update_together = false;
  bool overlap = true;
  v1::Cluster::CollectivePolicy collectives = v1::Cluster::AUTO;
  std::optional<int64_t> bucket_elements;
  v1::Recomputation::Choice recompute = v1::Recomputation::CHOICE_UNSPECIFIED;
  // The blocks that all plans recompute (plan/recomputation.h); Search sets them.
  std::vector<Interval> recomputed;
  HardwareModel hardware;
  Strategy strategy = Strategy::kAuto;
  Pins pins;
};
// Takes batch, optimiser, micro-batches, pipeline, device, policies and pins from the spec.
// Errors: those of PinsOf.
absl::StatusOr<PlanProblem> ProblemOf(const v1::RunSpec& spec, const Graph& graph,
                                      const ParameterIndex& index, int ranks,
                                      HardwareModel hardware);

}  // namespace cadre
