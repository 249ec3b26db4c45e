// Long short-term memory (Hochreiter and Schmidhuber 1997; with a projection, Sak et al. 2014), in
// the form of torch.nn.LSTM.
//
// The input products of all tokens are one matrix product. Then each step adds the product of the
// output before it, and computes its gates, cells and output in one pass. Backward visits the steps
// in reverse order, and leaves the gradients of the gates' sums of all steps, from which the
// gradients of inputs and weights are one product each.
//
// Steps operate on [samples, features], whereas activations are [samples, tokens, features], so
// inputs and outputs are copied token by token (LstmMemory). A layer that runs backwards copies the
// last token first; nothing else depends on the direction.
//
// Limits. Only samples are split: each step needs all outputs of the step before it.
#include <utility>

#include "plan/layer_memory.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

class Lstm final : public Layer {
 public:
  explicit Lstm(LayerSetting setting)
      : kernels_(setting.kernels),
        parameters_(std::move(setting.parameters)),
        dims_(LstmDimsOf(setting.layer, setting.region.inputs[0].shape()[0])),
        memory_(MemoryOfLstm(dims_, setting.kernels.activation_type())),
        reverse_(setting.layer.settings.lstm().reverse()) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const Saved saved = Split(t.saved);
    const Values inputs = Subspan(t.scratch, memory_.inputs);
    const Values recurrent = Subspan(t.scratch, memory_.recurrent);
    ByStep(dims_.features, t.x[0], inputs);
    dense().FullyConnectedForward(InputDims(), inputs, parameters_[kInputWeight].value,
                                  parameters_[kBias].value, saved.gates);
    for (int64_t step = 0; step < dims_.tokens; ++step) {
      const bool first = step == 0;
      if (!first) {
        dense().FullyConnectedForward(RecurrentDims(1), OfStep(saved.outputs, step - 1),
                                      parameters_[kRecurrentWeight].value, {}, recurrent);
      }
      kernels_.pointwise().LstmForward(Cells(), first ? Values() : recurrent,
                                       Before(saved.cells, step), OfStep(saved.gates, step),
                                       OfStep(saved.cells, step), OfStep(saved.projected, step));
      if (!dims_.projects) continue;
      dense().FullyConnectedForward(ProjectionDims(1), OfStep(saved.projected, step),
                                    parameters_[kProjectionWeight].value, {},
                                    OfStep(saved.outputs, step));
    }
    FromSteps(dims_.outputs, saved.outputs, t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const Saved saved = Split(t.saved);
    const Values inputs = Subspan(t.scratch, memory_.backward_inputs);
    const Values doutputs = Subspan(t.scratch, memory_.doutputs);
    ByStep(dims_.outputs, t.dy, doutputs);
    BackwardSteps(t.scratch, saved, doutputs);
    // Now the gates are gradients.
    ByStep(dims_.features, t.x[0], inputs);
    dense().FullyConnectedBackwardWeights(InputDims(), inputs, saved.gates,
                                          parameters_[kInputWeight].gradient,
                                          parameters_[kBias].gradient);
    // The first step has no output before it.
    const int64_t later = dims_.tokens - 1;
    dense().FullyConnectedBackwardWeights(RecurrentDims(later), Steps(saved.outputs, 0, later),
                                          Steps(saved.gates, 1, later),
                                          parameters_[kRecurrentWeight].gradient, {});
    if (dims_.projects) {
      dense().FullyConnectedBackwardWeights(ProjectionDims(dims_.tokens), saved.projected, doutputs,
                                            parameters_[kProjectionWeight].gradient, {});
    }
    if (t.dx[0].empty()) return absl::OkStatus();
    dense().FullyConnectedBackwardData(InputDims(), saved.gates, parameters_[kInputWeight].value,
                                       inputs);
    FromSteps(dims_.features, inputs, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  enum { kInputWeight, kRecurrentWeight, kBias, kProjectionWeight };

  // By step.
  struct Saved {
    Values gates;
    FloatSpan cells;
    Values outputs;
    // What is projected: the outputs, without a projection.
    Values projected;
  };

  DenseKernels& dense() { return kernels_.dense(); }
  RowsDims Cells() const { return {.rows = dims_.samples, .channels = dims_.hidden}; }
  FullyConnectedDims InputDims() const {
    return {dims_.samples * dims_.tokens, dims_.features, 4 * dims_.hidden};
  }
  FullyConnectedDims RecurrentDims(int64_t steps) const {
    return {steps * dims_.samples, dims_.outputs, 4 * dims_.hidden};
  }
  FullyConnectedDims ProjectionDims(int64_t steps) const {
    return {steps * dims_.samples, dims_.hidden, dims_.outputs};
  }

  Saved Split(Values memory) const {
    const Values outputs = Subspan(memory, memory_.outputs);
    return {.gates = Subspan(memory, memory_.gates),
            .cells = Floats(Subspan(memory, memory_.cells)),
            .outputs = outputs,
            .projected = dims_.projects ? Subspan(memory, memory_.projected) : outputs};
  }

  // The part of `values`, which are ordered by step, for `count` steps from `first` on.
  template <typename V>
  V Steps(V values, int64_t first, int64_t count) const {
    const int64_t step = values.size() / dims_.tokens;
    return values.subspan(first * step, count * step);
  }
  template <typename V>
  V OfStep(V values, int64_t step) const {
    return Steps(values, step, 1);
  }
  // Empty for the first step.
  FloatSpan Before(FloatSpan cells, int64_t step) const {
    return step == 0 ? FloatSpan() : OfStep(cells, step - 1);
  }
  int64_t TokenOf(int64_t step) const { return reverse_ ? dims_.tokens - 1 - step : step; }

  // Copies [samples, tokens, features] to [steps, samples, features], and back.
  void ByStep(int64_t features, ConstValues x, Values steps) {
    if (x.empty()) return;
    for (int64_t step = 0; step < dims_.tokens; ++step) {
      kernels_.memory().CopyRuns(dims_.samples, features, x.subspan(TokenOf(step) * features),
                                 dims_.tokens * features, OfStep(steps, step), features);
    }
  }
  void FromSteps(int64_t features, ConstValues steps, Values y) {
    if (y.empty()) return;
    for (int64_t step = 0; step < dims_.tokens; ++step) {
      kernels_.memory().CopyRuns(dims_.samples, features, OfStep(steps, step), features,
                                 y.subspan(TokenOf(step) * features), dims_.tokens * features);
    }
  }

  // Replaces the gates by the gradients of their sums, and adds the gradients of outputs by later
  // steps to `doutputs`.
  void BackwardSteps(Values scratch, const Saved& saved, Values doutputs) {
    const Values drecurrent = Subspan(scratch, memory_.drecurrent);
    const Values dprojected = Subspan(scratch, memory_.dprojected);
    const FloatSpan dcells = Floats(Subspan(scratch, memory_.dcells));
    kernels_.memory().Zero(dcells);
    for (int64_t step = dims_.tokens - 1; step >= 0; --step) {
      const Values dy = OfStep(doutputs, step);
      if (step + 1 < dims_.tokens) {
        dense().FullyConnectedBackwardData(RecurrentDims(1), OfStep(saved.gates, step + 1),
                                           parameters_[kRecurrentWeight].value, drecurrent);
        kernels_.pointwise().Add(drecurrent, dy);
      }
      if (dims_.projects) {
        dense().FullyConnectedBackwardData(ProjectionDims(1), dy,
                                           parameters_[kProjectionWeight].value, dprojected);
      }
      kernels_.pointwise().LstmBackward(Cells(), dims_.projects ? dprojected : dy,
                                        Before(saved.cells, step), OfStep(saved.cells, step),
                                        OfStep(saved.gates, step), dcells);
    }
  }

  Backend& kernels_;
  const std::vector<LocalTensor> parameters_;
  const LstmDims dims_;
  const LstmMemory memory_;
  const bool reverse_;
};

}  // namespace

std::unique_ptr<Layer> MakeLstm(LayerSetting setting) {
  return std::make_unique<Lstm>(std::move(setting));
}

}  // namespace cadre
