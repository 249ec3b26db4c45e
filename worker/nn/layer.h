// One layer of the network on the part of its tensors that this rank holds.
//
// A layer is made for one place: the boxes of its inputs (halo included) and output in a batch of a
// given size. It knows its layouts only as far as its arithmetic needs them: whether it is the one
// of several addends that adds the bias, and over which ranks a batch's statistics are taken. What
// has to move between ranks otherwise is done between layers. So the same code serves one worker
// and every parallel plan.
//
// Activations lie in the kernels' device and are of its activation type; layers hand them on and
// never look inside, so what they do is enqueued on the device's current lane.
//
// Thread-compatible. Layers borrow kernels, communicators and parameters, and own only small
// scratch, which is there when they are made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kernels.h"
#include "spec/graph.h"
#include "spec/op_indices.h"
#include "spec/tape.h"
#include "tensor/values.h"
#include "worker/comm/mesh_communicators.h"

namespace cadre {

// A parameter in the memory of this rank's device, and where its gradient goes.
struct LocalTensor {
  std::span<float> value;
  std::span<float> gradient;
};

// What of a pass a layer may have to know.
struct PassContext {
  bool training = false;
  // Of the run; together with the position of the batch's first sample in the endless sequence of
  // samples, which the kernels are told (SetPosition), it decides what dropout drops.
  uint64_t seed = 0;
  // Share of the step's samples that this batch is: 1, or less where the step is cut into
  // micro-batches. Running statistics are weighted by it.
  double share = 1;
};

// The memory that one call works on; what an operation does not need is empty.
struct LayerTensors {
  std::vector<ConstValues> x;
  Values y;
  // Of the type that the tape gives them; words where it is float32 (spec/tape.h).
  Values saved;
  Values scratch;
  ConstValues dy;
  // Empty: not wanted, or of no elements here. Whether it is wanted is the same on all ranks.
  std::vector<Values> dx;
  std::vector<bool> wants_dx;

  // What is saved, as words of four bytes. Requires: the tape gives it as such.
  std::span<float> saved_floats() const { return saved.floats(); }
  std::span<int32_t> saved_integers() const {
    const std::span<float> words = saved.floats();
    return {reinterpret_cast<int32_t*>(words.data()), words.size()};
  }
};

// Forward in two parts: a halo can travel during the first.
class HaloParts {
 public:
  virtual ~HaloParts() = default;
  // The rows of the interior (spec/tape.h) from what is here before the halo comes, then the
  // others. Requires: the layer's place has an interior.
  virtual absl::Status ForwardInterior(ConstValues held, const LayerTensors& t) = 0;
  virtual absl::Status ForwardBorder(const LayerTensors& t) = 0;
};

// Backward in two parts: the gradient of the input can travel during the second.
class GradientParts {
 public:
  virtual ~GradientParts() = default;
  virtual absl::Status BackwardInput(const LayerTensors& t) = 0;
  virtual absl::Status BackwardParameters(const LayerTensors& t) = 0;
};

class Layer {
 public:
  virtual ~Layer() = default;

  // y (and saved) from x. Errors: of communication; the device's come later (device/device.h).
  // Requires: tokens are the vocabulary's (Network::Load looks).
  virtual absl::Status Forward(const PassContext& pass, const LayerTensors& t) = 0;
  // Gradients of the parameters, and dx where wanted, from dy and what forward left.
  virtual absl::Status Backward(const PassContext& pass, const LayerTensors& t) = 0;

  // Null: the work comes in one piece.
  virtual HaloParts* halo_parts() { return nullptr; }
  virtual GradientParts* gradient_parts() { return nullptr; }
};

// What a layer is made of.
struct LayerSetting {
  const GraphLayer& layer;
  const LayerLayouts& layouts;
  const LayerPlace& place;
  // Samples of the whole batch.
  int64_t samples = 0;
  // The layer's place in the graph.
  int number = 0;
  Kernels& kernels;
  MeshCommunicators& comms;
  std::vector<LocalTensor> parameters;

  // True on the one rank, of those along the axes of `index`, that adds what is to be added once.
  bool IsFirstAlong(const char* index) const;
};

// Requires: not a softmax_cross_entropy, whose loss the network takes.
std::unique_ptr<Layer> MakeLayer(LayerSetting setting);

}  // namespace cadre
