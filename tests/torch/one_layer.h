// Executes one layer of a model on one rank: the layers, parameters and statistics of the worker,
// with inputs and gradients from the test.
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

// The plan of one rank, without splits.
Plan OneRankPlan(const Graph& graph, const ParameterIndex& index);

class OneLayer {
 public:
  // The layer `name` of `graph`, for batches of `samples`. Requires: the layer exists and is not
  // the loss.
  OneLayer(Graph graph, const std::string& name, int64_t samples, Backend& kernels);

  const GraphLayer& layer() const { return graph_[number_]; }

  std::span<float> Parameter(const std::string& name);
  std::span<float> Gradient(const std::string& name);

  absl::StatusOr<Floats> Train(const std::vector<Floats>& x);
  absl::StatusOr<Floats> Evaluate(const std::vector<Floats>& x);
  // Fills the parameters' gradients and returns the inputs' gradients (none for tokens).
  // Requires: the call before was Train, with `x`.
  absl::StatusOr<std::vector<Floats>> Backward(const std::vector<Floats>& x, const Floats& dy);
  // Updates the running statistics as the optimizer does at the end of a step; weights are
  // unchanged.
  void UpdateStatistics();

 private:
  // The operation of this kind on the layer; null if the tape has none.
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
  // Results of the latest forward.
  Floats y_;
  Floats saved_;
};

}  // namespace cadre
