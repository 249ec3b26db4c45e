// Multi-head self-attention (Vaswani et al., NeurIPS 2017) on the heads that this rank holds.
//
// Heads are independent up to the output projection, so splitting the heads splits both
// projections: the projection to queries, keys and values by its outputs, the output projection by
// its inputs. Each rank's output is then an addend of the whole, and the layer needs one exchange
// in each direction (Shoeybi et al., Megatron-LM, 2019). The move after the layer performs the
// exchange; only the first rank adds the bias.
//
// Forward saves queries, keys and values, the context, and one statistic of the softmax per token
// and head. The probabilities, which would take O(tokens^2) memory per head, are never stored:
// backward recomputes them from the statistics (kernels/cpu/attention.cc).
//
// With a padding token, the network's tokens are the second input (model/graph.h).
#include <utility>

#include "plan/layer_memory.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

class Attention final : public Layer {
 public:
  explicit Attention(LayerSetting setting)
      : kernels_(setting.kernels), parameters_(std::move(setting.parameters)) {
    const Shape in = setting.region.inputs[0].shape();
    features_ = in[2];
    dims_ = {.batch = in[0],
             .tokens = in[1],
             .head_features = setting.layer.parameters[0].shape[2],
             .causal = setting.layer.settings.attention().causal()};
    if (HasPadding(setting.layer)) {
      dims_.padding_token = setting.layer.settings.attention().padding_token();
    }
    const int64_t head_elements = 3 * dims_.head_features * features_;
    dims_.heads = std::ssize(parameters_[kQkvWeight].value) / head_elements;
    adds_bias_ = setting.IsFirstAlong("heads");
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const Saved saved = Split(t.saved);
    kernels_.dense().FullyConnectedForward(QkvDims(), t.x[0], parameters_[kQkvWeight].value,
                                           parameters_[kQkvBias].value, saved.qkv);
    kernels_.dense().AttentionForward(dims_, TokensIn(t), saved.qkv, saved.context,
                                      saved.statistics, t.scratch);
    kernels_.dense().FullyConnectedForward(
        OutDims(), saved.context, parameters_[kOutWeight].value,
        adds_bias_ ? parameters_[kOutBias].value : std::span<float>(), t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const Saved saved = Split(t.saved);
    const AttentionMemory memory = MemoryIn(t.scratch.type());
    const Values dqkv = Part(t.scratch, 0, memory.qkv);
    const Values dcontext = Part(t.scratch, memory.context_begin, memory.context);
    kernels_.dense().FullyConnectedBackwardWeights(OutDims(), saved.context, t.dy,
                                                   parameters_[kOutWeight].gradient,
                                                   parameters_[kOutBias].gradient);
    kernels_.dense().FullyConnectedBackwardData(OutDims(), t.dy, parameters_[kOutWeight].value,
                                                dcontext);
    kernels_.dense().AttentionBackward(dims_, TokensIn(t), saved.qkv, saved.context, dcontext,
                                       saved.statistics, ScoresIn(t.scratch), dqkv);
    kernels_.dense().FullyConnectedBackwardWeights(
        QkvDims(), t.x[0], dqkv, parameters_[kQkvWeight].gradient, parameters_[kQkvBias].gradient);
    if (t.dx[0].empty()) return absl::OkStatus();
    kernels_.dense().FullyConnectedBackwardData(QkvDims(), dqkv, parameters_[kQkvWeight].value,
                                                t.dx[0]);
    return absl::OkStatus();
  }

 private:
  enum { kQkvWeight, kQkvBias, kOutWeight, kOutBias };

  struct Saved {
    Values qkv, context;
    FloatSpan statistics;
  };

  int64_t rows() const { return dims_.batch * dims_.tokens; }
  int64_t head_features() const { return dims_.heads * dims_.head_features; }
  FullyConnectedDims QkvDims() const { return {rows(), features_, 3 * head_features()}; }
  FullyConnectedDims OutDims() const { return {rows(), head_features(), features_}; }

  // Empty without a padding token.
  static ConstFloatSpan TokensIn(const LayerTensors& t) {
    return t.x.size() == 1 ? ConstFloatSpan() : t.x[1].floats();
  }

  AttentionMemory MemoryIn(DType type) const {
    return MemoryOfAttention(dims_.batch, dims_.tokens, dims_.heads, dims_.head_features, type);
  }
  // The scratch memory of backward behind the gradients.
  Values ScoresIn(Values scratch) const {
    const int64_t begin = AlignedOffset(MemoryIn(scratch.type()).scratch());
    return begin < std::ssize(scratch) ? scratch.subspan(begin) : scratch.first(0);
  }
  // For an empty batch, no memory is allocated, so offsets do not apply.
  static Values Part(Values memory, int64_t begin, int64_t elements) {
    return elements == 0 ? memory.first(0) : memory.subspan(begin, elements);
  }
  Saved Split(Values saved) const {
    const AttentionMemory memory = MemoryIn(saved.type());
    const Values statistics = Part(saved, memory.statistics_begin, memory.statistics);
    return {
        .qkv = Part(saved, 0, memory.qkv),
        .context = Part(saved, memory.context_begin, memory.context),
        .statistics = {static_cast<float*>(statistics.data()), statistics.bytes() / sizeof(float)}};
  }

  Backend& kernels_;
  const std::vector<LocalTensor> parameters_;
  AttentionDims dims_;
  int64_t features_ = 0;
  bool adds_bias_ = true;
};

}  // namespace

std::unique_ptr<Layer> MakeAttention(LayerSetting setting) {
  return std::make_unique<Attention>(std::move(setting));
}

}  // namespace cadre
