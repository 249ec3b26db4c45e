// One layer of the network, on the part of its tensors that this rank holds.
//
// A layer is made for fixed boxes (parts) of its inputs, halo included, and of its output, in a
// batch of a given size. It uses its layouts only to decide which rank adds the bias if outputs are
// partial sums, and over which ranks the statistics of a batch are computed. All other exchanges
// happen between layers, so the same code serves a single worker and every parallel plan.
//
// Activations are in device memory and have the device's activation type. Layers never read them on
// the host: their work is enqueued on the device's current stream.
//
// Thread-compatible. Layers borrow kernels, communicators and parameters; they own only small
// scratch memory, allocated at construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "comm/mesh_communicators.h"
#include "kernels/backend.h"
#include "model/graph.h"
#include "model/op_indices.h"
#include "plan/tape.h"
#include "tensor/interval.h"
#include "tensor/values.h"

namespace cadre {

// A parameter and its gradient in device memory.
struct LocalTensor {
  std::span<float> value;
  std::span<float> gradient;
};

// Properties of a pass that a layer may need.
struct PassContext {
  bool training = false;
  // The run's seed. Together with the position of the batch's first sample in the endless sequence
  // of samples (PointwiseKernels::SetPosition) it determines which elements dropout drops.
  uint64_t seed = 0;
  // Fraction of the step's samples that this batch contains; below 1 with micro-batches. It weights
  // running statistics.
  double share = 1;
  // Training with a sample of classes: the numbers of the sampled classes, then the labels of the
  // rows of the layer that scores them; and what is added to the scores of each. In device memory.
  std::span<const float> candidates;
  std::span<const float> candidate_offsets;
};

// The tensors of one call. Those that an operation does not need are empty.
struct LayerTensors {
  std::vector<ConstValues> x;
  Values y;
  // Their type is the one that the tape assigns (plan/tape.h).
  Values saved;
  Values scratch;
  ConstValues dy;
  // An entry of dx is empty if it is not required or has no elements on this rank; wants_dx says
  // whether it is required, and is equal on all ranks.
  std::vector<Values> dx;
  std::vector<bool> wants_dx;
  // As in TapeOp.
  bool relu = false;
  bool adds_dx = false;
  bool again = false;
  ConstValues addend;
  ConstValues other_dy;
  Values total_dy;

  // The saved values as elements of four bytes. Requires: the tape assigns such a type.
  std::span<float> saved_floats() const { return saved.floats(); }
  std::span<int32_t> saved_integers() const {
    const std::span<float> words = saved.floats();
    return {reinterpret_cast<int32_t*>(words.data()), words.size()};
  }
};

// Forward in two parts, so that a halo can be exchanged during the first.
class HaloParts {
 public:
  virtual ~HaloParts() = default;
  // ForwardInterior computes the rows of the interior (plan/tape.h), which need no halo, from
  // `held`; then ForwardBorder computes the others. Requires: the layer's region has an interior.
  virtual absl::Status ForwardInterior(ConstValues held, const LayerTensors& t) = 0;
  virtual absl::Status ForwardBorder(const LayerTensors& t) = 0;
};

// Backward in two parts, so that the gradient of the input can be exchanged during the second.
class GradientParts {
 public:
  virtual ~GradientParts() = default;
  virtual absl::Status BackwardInput(const LayerTensors& t) = 0;
  virtual absl::Status BackwardParameters(const LayerTensors& t) = 0;
};

// A layer that computes any of its rows without the others, for a loss that takes its scores in
// chunks (TapeOp::scorer). `x`, `dx`: of all rows; `y`, `dy`: of `rows`.
class RowParts {
 public:
  virtual ~RowParts() = default;
  virtual void ForwardRows(Interval rows, ConstValues x, Values y) = 0;
  // Adds to the gradients of the parameters what these rows contribute; those of the rows from 0 on
  // replace them. An empty dx is not computed.
  virtual void BackwardRows(Interval rows, ConstValues x, ConstValues dy, Values dx) = 0;
};

class Layer {
 public:
  virtual ~Layer() = default;

  // Computes y (and saved) from x. Errors: those of communication; device errors are reported later
  // (device/device.h). Requires: tokens are in the vocabulary (Network::Load checks).
  virtual absl::Status Forward(const PassContext& pass, const LayerTensors& t) = 0;
  // Computes the gradients of the parameters, and dx where required, from dy and `saved`.
  virtual absl::Status Backward(const PassContext& pass, const LayerTensors& t) = 0;

  // Null: the layer cannot split the work.
  virtual HaloParts* halo_parts() { return nullptr; }
  virtual GradientParts* gradient_parts() { return nullptr; }
  virtual RowParts* row_parts() { return nullptr; }
};

// The constructor arguments of a layer.
struct LayerSetting {
  const GraphLayer& layer;
  const LayerLayouts& layouts;
  const LayerRegion& region;
  // Samples of the whole batch.
  int64_t samples = 0;
  // Position of the layer in the graph.
  int number = 0;
  Backend& kernels;
  MeshCommunicators& comms;
  std::vector<LocalTensor> parameters;
  // The weight that the layer shares with an earlier layer, if GraphLayer::tied_to names one.
  LocalTensor tied_weight;

  // True on exactly one of the ranks along the axes that split operation index `index`: that rank
  // adds what must be added once, such as a bias.
  bool IsFirstAlong(const char* index) const {
    return comms.mesh().Coordinate(comms.rank(), layouts.axes(index)) == 0;
  }
};

}  // namespace cadre
