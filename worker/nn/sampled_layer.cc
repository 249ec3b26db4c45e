// A fully connected layer whose scores of classes a sampled softmax compares (Jozefowicz et al.
// 2016): in training it computes, of each row, the score of the row's label and those of a sample
// of the classes, which all rows share.
//
// The candidates are the sampled classes and the labels of the rows. Their rows of the weight are
// gathered like those of an embedding. The scores of the sample are then one matrix product with
// the inputs, and those of the labels a product of two vectors for each row. So the work is that of
// a layer with as many outputs as the sample, and no more rows of the weight are read.
//
// The gradient of the weight is complete, with zeros in the rows of other classes: it is reduced,
// and the optimizer updates all rows, as without sampling. So momentum, weight decay and clipping
// have their usual meaning, and those rows change as in a step with gradient zero.
//
// Limits. The gradient is exchanged and the optimizer runs over all rows, so their cost does not
// depend on the sample.
#include <utility>

#include "base/status.h"
#include "plan/layer_memory.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

class SampledFullyConnected final : public Layer, public GradientParts {
 public:
  explicit SampledFullyConnected(LayerSetting setting) : kernels_(setting.kernels) {
    const bool tied = setting.layer.tied_to != GraphLayer::kNotTied;
    weight_ = tied ? setting.tied_weight : setting.parameters[0];
    const size_t own_weights = tied ? 0 : 1;
    if (setting.parameters.size() > own_weights) bias_ = setting.parameters[own_weights];
    const Shape in = setting.region.inputs[0].shape();
    features_ = in.dims().back();
    rows_ = in.rank() == 3 ? in[0] * in[1] : in[0];
    sampled_ = setting.layer.sampled_classes;
    classes_ = setting.layer.settings.fully_connected().out_features();
    memory_ = MemoryOfSampled(rows_, sampled_, features_, kernels_.activation_type());
    // If inputs are split, scores are addends, and one rank adds the rest.
    adds_offsets_ = setting.IsFirstAlong("in");
  }

  absl::Status Forward(const PassContext& pass, const LayerTensors& t) override {
    const FloatSpan candidates = t.saved_floats();
    const FloatSpan offsets = Floats(Subspan(t.scratch, memory_.offsets));
    const FloatSpan label_scores = Floats(Subspan(t.scratch, memory_.label_scores));
    const FloatSpan scores = Floats(Subspan(t.scratch, memory_.scores));
    const Values weights = Subspan(t.scratch, memory_.weights);
    kernels_.memory().Copy(pass.candidates, candidates);
    dense().EmbeddingForward(Table(features_), candidates, weight_.value, {}, weights);
    dense().BatchedProduct(
        {.batch = 1, .m = rows_, .n = sampled_, .k = features_, .transpose_b = true}, t.x[0],
        OfSample(weights), scores);
    dense().BatchedProduct({.batch = rows_, .m = 1, .n = 1, .k = features_}, t.x[0],
                           OfLabels(weights), label_scores);
    if (adds_offsets_) {
      kernels_.memory().Copy(pass.candidate_offsets, offsets);
      AddBiases(candidates, Floats(Subspan(t.scratch, memory_.biases)), offsets);
    } else {
      kernels_.memory().Zero(offsets);
    }
    kernels_.pointwise().SampledScores({.rows = rows_, .channels = sampled_}, candidates, offsets,
                                       label_scores, scores, t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    CADRE_RETURN_IF_ERROR(BackwardInput(t));
    return BackwardParameters(t);
  }

  GradientParts* gradient_parts() override { return this; }

  // Also separates the gradients of the scores of labels from those of sampled classes.
  absl::Status BackwardInput(const LayerTensors& t) override {
    const Values dlabel_scores = Subspan(t.scratch, memory_.dlabel_scores);
    const Values dscores = Subspan(t.scratch, memory_.dscores);
    if (rows_ > 0) {
      kernels_.memory().CopyRuns(rows_, 1, t.dy, 1 + sampled_, dlabel_scores, 1);
      kernels_.memory().CopyRuns(rows_, sampled_, t.dy.subspan(1), 1 + sampled_, dscores, sampled_);
    }
    if (t.dx[0].empty()) return absl::OkStatus();
    const Values weights = Subspan(t.scratch, memory_.backward_weights);
    const Values label_terms = Subspan(t.scratch, memory_.label_terms);
    dense().EmbeddingForward(Table(features_), t.saved_floats(), weight_.value, {}, weights);
    dense().BatchedProduct({.batch = 1, .m = rows_, .n = features_, .k = sampled_}, dscores,
                           OfSample(weights), t.dx[0]);
    dense().BatchedProduct({.batch = rows_, .m = 1, .n = features_, .k = 1}, dlabel_scores,
                           OfLabels(weights), label_terms);
    kernels_.pointwise().Add(label_terms, t.dx[0]);
    return absl::OkStatus();
  }

  // Requires: BackwardInput was called before, with the same scratch memory.
  absl::Status BackwardParameters(const LayerTensors& t) override {
    const Values dlabel_scores = Subspan(t.scratch, memory_.dlabel_scores);
    const FloatSpan dweights = Floats(Subspan(t.scratch, memory_.dweights));
    const FloatSpan dbiases = Floats(Subspan(t.scratch, memory_.dbiases));
    dense().FullyConnectedBackwardWeights({.batch = rows_, .in = features_, .out = sampled_},
                                          t.x[0], Subspan(t.scratch, memory_.dscores),
                                          OfSample(dweights), dbiases.first(sampled_));
    dense().BatchedProduct({.batch = rows_, .m = 1, .n = features_, .k = 1}, dlabel_scores, t.x[0],
                           OfLabels(dweights));
    dense().EmbeddingBackward(Table(features_), t.saved_floats(), dweights, weight_.gradient, {});
    if (bias_.value.empty()) return absl::OkStatus();
    kernels_.memory().Copy(dlabel_scores, dbiases.subspan(sampled_));
    dense().EmbeddingBackward(Table(1), t.saved_floats(), dbiases, bias_.gradient, {});
    return absl::OkStatus();
  }

 private:
  DenseKernels& dense() { return kernels_.dense(); }

  // The weight, or the bias, as a table of classes from which candidates are gathered.
  EmbeddingDims Table(int64_t features) const {
    return {.batch = sampled_ + rows_, .tokens = 1, .vocabulary = classes_, .features = features};
  }

  void AddBiases(ConstFloatSpan candidates, FloatSpan biases, FloatSpan offsets) {
    if (bias_.value.empty()) return;
    dense().EmbeddingForward(Table(1), candidates, bias_.value, {}, biases);
    kernels_.pointwise().Add(biases, offsets);
  }

  // The candidates' rows that belong to the sample.
  template <typename V>
  V OfSample(V rows) const {
    return rows.subspan(0, sampled_ * features_);
  }
  template <typename V>
  V OfLabels(V rows) const {
    return rows.subspan(sampled_ * features_, rows_ * features_);
  }

  Backend& kernels_;
  LocalTensor weight_;
  LocalTensor bias_;
  int64_t rows_ = 0, sampled_ = 0, classes_ = 0;
  // Features in this rank's part of the inputs.
  int64_t features_ = 0;
  SampledMemory memory_;
  bool adds_offsets_ = true;
};

}  // namespace

std::unique_ptr<Layer> MakeSampledFullyConnected(LayerSetting setting) {
  return std::make_unique<SampledFullyConnected>(std::move(setting));
}

}  // namespace cadre
