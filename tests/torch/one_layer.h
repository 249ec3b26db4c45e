// One layer of a model on one rank, played by itself: the engine's own layers, parameters and
// statistics, with inputs and gradients from outside.
//
// Owns all but the kernels, which must outlive it. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/nn/layer.h"
#include "worker/nn/parameter_store.h"
#include "worker/transport/transport.h"

namespace cadre {

using Floats = std::vector<float>;

// The plan of one rank: nothing is split.
Plan OneRankPlan(const Graph& graph, const ParameterIndex& index);

class OneLayer {
 public:
  // Of `graph`, the layer called `name`, for batches of `samples`.
  // Requires: there is such a layer; it is not the loss.
  OneLayer(Graph graph, const std::string& name, int64_t samples, Backend& kernels);

  const GraphLayer& layer() const { return graph_[number_]; }

  std::span<float> Parameter(const std::string& name);
  std::span<float> Gradient(const std::string& name);

  absl::StatusOr<Floats> Train(const std::vector<Floats>& x);
  absl::StatusOr<Floats> Evaluate(const std::vector<Floats>& x);
  // Fills the parameters' gradients and returns those of the inputs; none for tokens.
  // Requires: the call before was Train, of `x`.
  absl::StatusOr<std::vector<Floats>> Backward(const std::vector<Floats>& x, const Floats& dy);
  // What the optimiser makes of running statistics at a step's end; all else stays.
  void UpdateStatistics();

 private:
  // The operation of a kind on the layer; null where the tape has none.
  const TapeOp* OpOf(const Tape& tape, TapeOpKind kind) const;
  absl::StatusOr<Floats> Forward(bool training, const std::vector<Floats>& x);
  LocalTensor TensorOf(const std::string& name);

  const Graph graph_;
  const ParameterIndex index_;
  const Plan plan_;
  int number_ = 0;
  Backend& kernels_;
  const std::vector<std::unique_ptr<Transport>> transports_;
  MeshCommunicators comms_;
  ParameterStore store_;
  const Tape training_;
  const Tape evaluation_;
  std::unique_ptr<Layer> layer_;
  // As forward left them.
  Floats y_, saved_;
};

}  // namespace cadre
