#include "worker/nn/network_input.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

std::optional<ClassSampler> SamplerOf(const Graph& graph, uint64_t seed) {
  if (graph.sampled_layer() == Graph::kNoLayer) return std::nullopt;
  const v1::SoftmaxCrossEntropy& loss = graph.layers().back().settings.softmax_cross_entropy();
  return ClassSampler(loss.sampling(), graph.classes(), seed);
}

}  // namespace

int64_t LabelsIn(const Tape& tape) {
  const Shape compared = tape.regions.back().inputs[0].shape();
  return compared.elements() / compared[compared.rank() - 1];
}

NetworkInput::NetworkInput(const Graph& graph, const Plan& plan, int rank, uint64_t seed,
                           Backend& kernels)
    : graph_(graph),
      plan_(plan),
      rank_(rank),
      sampler_(SamplerOf(graph, seed)),
      kernels_(kernels),
      upload_(kernels, graph.takes_tokens() ? DType::kFloat32 : kernels.activation_type()) {}

Interval NetworkInput::InputRows(int64_t samples) const {
  const Box box =
      LocalBox(BatchShape(samples, graph_.input()), InputLayout(graph_, plan_), plan_.mesh, rank_);
  return {box.begin[0], box.end[0]};
}

Interval NetworkInput::LabelRows(int64_t samples) const {
  const auto rows = [&](const Layout& layout) {
    const Box box = LocalBox(Shape{samples}, Layout{.split = {layout.axes(0)}, .at = layout.at},
                             plan_.mesh, rank_);
    return Interval{box.begin[0], box.end[0]};
  };
  const Interval loss = rows(plan_.layers.back().inputs[0]);
  if (!sampler_) return loss;
  const Interval scored = rows(plan_.layers[graph_.sampled_layer()].output);
  if (loss.empty() || scored.empty()) return loss.empty() ? scored : loss;
  return {std::min(loss.begin, scored.begin), std::max(loss.end, scored.end)};
}

bool NetworkInput::Reserve(const Tape& tape) {
  return upload_.Reserve(tape.input.shape().elements(), LabelsIn(tape), 2 * tape.candidates);
}

absl::Status NetworkInput::Load(const Tape& tape, const BatchView& batch) {
  CADRE_RETURN_IF_ERROR(kernels_.device().status());
  CADRE_RETURN_IF_ERROR(CheckTokens(batch.inputs));
  HostBatch here{.inputs = batch.inputs};
  if (tape.candidates > 0) here.candidates = CandidatesHere(tape, batch);
  if (sampler_ && tape.training) {
    first_labels_.resize(LabelsIn(tape));
    here.labels = first_labels_;
  } else {
    here.labels = LabelsOf(tape.regions.back().inputs[0], batch);
    CHECK_EQ(std::ssize(here.labels), LabelsIn(tape))
        << "labels of " << graph_.layers().back().name;
  }
  kernels_.pointwise().SetPosition(batch.first_position);
  upload_.Upload(here);
  return kernels_.device().status();
}

absl::Status NetworkInput::CheckTokens(std::span<const float> tokens) const {
  for (const GraphLayer& layer : graph_.layers()) {
    if (layer.kind != LayerKind::kEmbedding) continue;
    const int64_t vocabulary = layer.parameters[0].shape[0];
    for (const float id : tokens) {
      if (id >= 0.0F && id < vocabulary && std::floor(id) == id) continue;
      return absl::InvalidArgumentError(absl::StrCat("layer '", layer.name, "': ", id,
                                                     " is not a token; the vocabulary is 0 to ",
                                                     vocabulary - 1));
    }
  }
  return absl::OkStatus();
}

std::span<const int32_t> NetworkInput::LabelsOf(const Box& scores, const BatchView& batch) {
  const Shape here = scores.shape();
  const int64_t per_sample = graph_.labels_per_sample();
  const Interval given = LabelRows(batch.samples);
  const Interval samples{scores.begin[0], scores.end[0]};
  const Interval tokens =
      here.rank() == 3 ? Interval{scores.begin[1], scores.end[1]} : Interval{0, per_sample};
  if (samples == given && tokens.size() == per_sample) return batch.labels;
  labels_here_.clear();
  for (int64_t sample = samples.begin; sample < samples.end; ++sample) {
    const auto first = batch.labels.begin() + (sample - given.begin) * per_sample;
    labels_here_.insert(labels_here_.end(), first + tokens.begin, first + tokens.end);
  }
  return labels_here_;
}

std::span<const float> NetworkInput::CandidatesHere(const Tape& tape, const BatchView& batch) {
  const Box& scores = tape.regions[graph_.sampled_layer()].output;
  candidates_here_.clear();
  const uint64_t step_position = batch.first_position - batch.first_in_step;
  for (const int64_t c : sampler_->Draw(step_position)) candidates_here_.push_back(c);
  for (const int32_t label : LabelsOf(scores, batch)) candidates_here_.push_back(label);
  CHECK_EQ(std::ssize(candidates_here_), tape.candidates);
  candidates_here_.reserve(2 * tape.candidates);
  for (int64_t i = 0; i < tape.candidates; ++i) {
    const int64_t c = candidates_here_[i];
    candidates_here_.push_back(-std::log(sampler_->Probability(c)));
  }
  return candidates_here_;
}

}  // namespace cadre
