// A rank's part of the network: layers on local extents, reshards between them where layouts
// differ, and the activations in between.
//
// Weights are read from, and gradients written to, the parameter store; nothing here asks which
// parallelism it is part of. What a parameter's gradient still lacks (the sum over its bucket's
// axes) is the trainer's business.
//
// Owns layers, reshards and activations. Borrows the rest, which must outlive it.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "tensor/tensor.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/nn/layer.h"
#include "worker/nn/parameter_store.h"
#include "worker/nn/reshard.h"

namespace cadre {

// Rows [begin, end) of a batch.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// What this rank's rows add to the group's loss; every sample of the batch is counted by exactly
// one rank.
struct LossPart {
  double loss = 0;
  int64_t correct = 0;
  int64_t samples = 0;
};

class Network {
 public:
  // Errors: Unimplemented for a plan that needs a reshard that does not exist; InvalidArgument for
  // a plan that does not fit the graph.
  static absl::StatusOr<std::unique_ptr<Network>> Make(const Graph& graph,
                                                       const ParameterIndex& index,
                                                       const Plan& plan, Kernels& kernels,
                                                       ParameterStore& parameters,
                                                       MeshCommunicators& comms);

  // Of a batch of `samples`, the rows whose images this rank takes in, and the rows whose labels it
  // compares with.
  Rows ImageRows(int64_t samples) const;
  Rows LabelRows(int64_t samples) const;

  // Forward and backward of a batch of `samples` over the group; `images` and `labels` are this
  // rank's rows. Fills the store's gradients: of the mean loss over the whole batch, as partial
  // sums over each bucket's axes.
  absl::StatusOr<LossPart> ForwardBackward(int64_t samples, std::span<const float> images,
                                           std::span<const int32_t> labels);

  // Forward only.
  absl::StatusOr<LossPart> Evaluate(int64_t samples, std::span<const float> images,
                                    std::span<const int32_t> labels);

 private:
  // A layer with the way to it.
  struct Stage {
    // Null for the loss, which is last.
    std::unique_ptr<Layer> layer;
    std::unique_ptr<Reshard> reshard;
    Layout input;
    Layout output;
    // Features of the whole input and output, per sample.
    int64_t in_features = 0;
    int64_t out_features = 0;
    // Input in the layer's own layout where a reshard makes it; otherwise empty, and the output of
    // the layer before serves.
    Tensor x;
    Tensor y;
    Tensor dx;
    Tensor dy;
  };

  Network(Kernels& kernels, MeshCommunicators& comms) : kernels_(kernels), comms_(comms) {}

  // The part of [samples, features] that this rank holds in a layout.
  Shape LocalShape(int64_t samples, int64_t features, const Layout& layout) const;
  void Resize(int64_t samples, bool with_gradients);
  absl::Status Forward(int64_t samples, std::span<const float> images);
  absl::Status Backward(int64_t samples);
  LossPart Loss(int64_t samples, std::span<const int32_t> labels, bool with_gradient);
  // What layer i takes in.
  std::span<const float> Input(size_t i) const;

  Kernels& kernels_;
  MeshCommunicators& comms_;
  std::vector<Stage> stages_;
  std::span<const float> images_;
  int64_t resized_for_ = -1;
  bool has_gradients_ = false;
};

}  // namespace cadre
