// Attention to another sequence, such as the outputs of an encoder, by dot products (Luong et al.
// 2015, section 3.1). The probabilities are saved for backward: the sequences of recurrent networks
// are short. kernels/cpu/attention.cc has the form for long ones.
#include <cmath>
#include <utility>

#include "plan/layer_memory.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

class DotProductAttention final : public Layer {
 public:
  explicit DotProductAttention(LayerSetting setting) : kernels_(setting.kernels) {
    const Shape queries = setting.region.inputs[0].shape();
    batch_ = queries[0];
    tokens_ = queries[1];
    features_ = queries[2];
    source_ = setting.region.inputs[1].shape()[1];
    const double features = features_;
    scale_ = 1 / std::sqrt(features);
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const FloatSpan scores = Floats(t.scratch);
    kernels_.dense().BatchedProduct(Scores(), t.x[0], t.x[1], scores);
    kernels_.pointwise().SoftmaxForward(Rows(), scale_, scores, t.saved);
    kernels_.dense().BatchedProduct(Weighted(), t.saved, t.x[1], t.y);
    return absl::OkStatus();
  }

  // The source is keys and values: its gradient is dscores^T q + probabilities^T dy.
  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (t.dy.empty()) return absl::OkStatus();
    const FloatSpan dprobabilities = Floats(t.scratch);
    const int64_t per_number = sizeof(float) / SizeOf(t.scratch.type());
    const int64_t dscores_begin = AlignedOffset(std::ssize(t.saved) * per_number);
    const Values dscores = t.scratch.subspan(dscores_begin, t.saved.size());
    const Values dvalues =
        t.scratch.subspan(dscores_begin + AlignedOffset(std::ssize(t.saved)), t.x[1].size());
    kernels_.dense().BatchedProduct(Scores(), t.dy, t.x[1], dprobabilities);
    kernels_.pointwise().SoftmaxBackward(Rows(), scale_, t.saved, dprobabilities, dscores);
    if (!t.dx[0].empty()) kernels_.dense().BatchedProduct(Weighted(), dscores, t.x[1], t.dx[0]);
    if (t.dx[1].empty()) return absl::OkStatus();
    kernels_.dense().BatchedProduct(OfSource(), dscores, t.x[0], t.dx[1]);
    kernels_.dense().BatchedProduct(OfSource(), t.saved, t.dy, dvalues);
    kernels_.pointwise().Add(dvalues, t.dx[1]);
    return absl::OkStatus();
  }

 private:
  RowsDims Rows() const { return {.rows = batch_ * tokens_, .channels = source_}; }
  // The fp32 scores, or gradients of probabilities, at the beginning of scratch memory.
  FloatSpan Floats(Values scratch) const {
    const size_t elements = batch_ * tokens_ * source_;
    return {static_cast<float*>(scratch.data()), elements};
  }
  // [tokens, features] by [source, features]^T, [tokens, source] by [source, features], and
  // [tokens, source]^T by [tokens, features].
  BatchedProductDims Scores() const {
    return {.batch = batch_, .m = tokens_, .n = source_, .k = features_, .transpose_b = true};
  }
  BatchedProductDims Weighted() const {
    return {.batch = batch_, .m = tokens_, .n = features_, .k = source_};
  }
  BatchedProductDims OfSource() const {
    return {.batch = batch_, .m = source_, .n = features_, .k = tokens_, .transpose_a = true};
  }

  Backend& kernels_;
  int64_t batch_ = 0, tokens_ = 0, features_ = 0, source_ = 0;
  float scale_ = 1;
};

}  // namespace

std::unique_ptr<Layer> MakeDotProductAttention(LayerSetting setting) {
  return std::make_unique<DotProductAttention>(std::move(setting));
}

}  // namespace cadre
