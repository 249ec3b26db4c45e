#include "plan/layer_memory.h"

#include <algorithm>

#include "plan/layer_part.h"

namespace cadre {
namespace {

constexpr int kRows = 1;

int64_t Elements(const Box& box) { return box.shape().elements(); }

}  // namespace

// The rows before, in and after the interior are computed in scratch memory.
int64_t LayerMemory::InteriorScratch(int l) const {
  const LayerRegion& here = region(l);
  if (!here.has_interior()) return 0;
  int64_t elements = 0;
  const int64_t borders[] = {here.output.begin[kRows], here.interior_begin, here.interior_end,
                             here.output.end[kRows]};
  for (int part = 0; part < 3; ++part) {
    const Box x = here.InputRowsFor(graph_[l].window, borders[part], borders[part + 1]);
    const Box y = here.OutputRows(borders[part], borders[part + 1]);
    elements = std::max(elements, AlignedOffset(Elements(x)) + Elements(y));
  }
  return elements;
}

LayerMemory::SavedValues LayerMemory::SavedBy(int l) const {
  const GraphLayer& layer = graph_[l];
  const Shape output = region(l).output.shape();
  const int64_t channels = output[output.rank() - 1];
  switch (layer.kind) {
    case LayerKind::kMaxPool:            // position of the maximum
    case LayerKind::kLocalResponseNorm:  // denominators
      return {.elements = output.elements()};
    case LayerKind::kBatchNorm:  // mean and inverse standard deviation
      return {.elements = 2 * channels};
    case LayerKind::kLayerNorm:
      return {.elements = 2 * output.elements() / std::max<int64_t>(1, channels)};
    case LayerKind::kFullyConnected:  // candidates
      return {.elements = layer.sampled_classes > 0 ? tape_.candidates : 0};
    case LayerKind::kAttention:  // queries, keys, values; context; statistics
      return {.type = tape_.activations, .elements = AttentionOf(l).saved()};
    case LayerKind::kLstm:
      return {.type = tape_.activations, .elements = LstmOf(l).saved};
    case LayerKind::kDotProductAttention:  // probabilities
      return {.type = tape_.activations, .elements = Probabilities(l)};
    default:
      return {};
  }
}

// The first tokens of the samples, or their gradients.
int64_t LayerMemory::ClassTokenScratch(int l) const {
  if (graph_[l].kind != LayerKind::kClassToken) return 0;
  const Shape output = region(l).output.shape();
  return output[0] * output[2];
}

// Elements that hold this many fp32 numbers.
int64_t LayerMemory::HoldingFloats(int64_t numbers) const {
  return numbers * (SizeOf(DType::kFloat32) / SizeOf(tape_.activations));
}

int64_t LayerMemory::ForwardScratch(int l) const {
  switch (graph_[l].kind) {
    case LayerKind::kConvolution:
      return InteriorScratch(l);
    case LayerKind::kFullyConnected:
      return graph_[l].sampled_classes > 0 ? SampledOf(l).forward_scratch : 0;
    case LayerKind::kClassToken:
      return ClassTokenScratch(l);
    case LayerKind::kLstm:
      return LstmOf(l).forward_scratch;
    case LayerKind::kAttention:
      return ScoresOf(l).forward;
    case LayerKind::kDotProductAttention:  // scores
      return HoldingFloats(Probabilities(l));
    default:
      return 0;
  }
}

int64_t LayerMemory::BackwardScratch(int l, bool needs_gradient) const {
  const GraphLayer& layer = graph_[l];
  if (layer.kind == LayerKind::kLstm) return LstmOf(l).backward_scratch;
  if (layer.sampled_classes > 0) return SampledOf(l).backward_scratch;
  if (layer.kind == LayerKind::kDotProductAttention) {
    // The gradients of probabilities (fp32) and of scores, and a part of that of the source.
    return AlignedOffset(HoldingFloats(Probabilities(l))) + AlignedOffset(Probabilities(l)) +
           Elements(region(l).inputs[1]);
  }
  if (layer.kind == LayerKind::kClassToken) return ClassTokenScratch(l);
  if (layer.kind == LayerKind::kAttention) {
    const int64_t gradients = AttentionOf(l).scratch(), scores = ScoresOf(l).backward;
    return scores == 0 ? gradients : AlignedOffset(gradients) + scores;
  }
  // The kernel always computes the gradient of the input.
  if (layer.kind == LayerKind::kLayerNorm && !needs_gradient) {
    return Elements(region(l).inputs[0]);
  }
  return 0;
}

LstmMemory LayerMemory::LstmOf(int l) const {
  return MemoryOfLstm(LstmDimsOf(graph_[l], region(l).output.shape()[0]), tape_.activations);
}

SampledMemory LayerMemory::SampledOf(int l) const {
  const Shape input = region(l).inputs[0].shape();
  const int64_t features = input.dims().back();
  const Shape output = region(l).output.shape();
  return MemoryOfSampled(output.elements() / output.dims().back(), graph_[l].sampled_classes,
                         features, tape_.activations);
}

// One for each query and each token of the source.
int64_t LayerMemory::Probabilities(int l) const {
  return region(l).output.shape()[0] * graph_[l].output[0] * graph_[l].input(1)[0];
}

int64_t LayerMemory::HeadsHere(int l) const {
  const Box weight =
      LocalBox(graph_[l].parameters[0].shape, plan_.layers[l].parameters[0], plan_.mesh, rank_);
  return weight.shape()[0];
}

AttentionMemory LayerMemory::AttentionOf(int l) const {
  const Shape output = region(l).output.shape();
  return MemoryOfAttention(output[0], output[1], HeadsHere(l), graph_[l].parameters[0].shape[2],
                           tape_.activations);
}

ScoreMemory LayerMemory::ScoresOf(int l) const {
  if (device_ != v1::Cluster::CUDA) return {};
  const Shape output = region(l).output.shape();
  return MemoryOfScores(output[0], output[1], HeadsHere(l), graph_[l].parameters[0].shape[2],
                        /*fuses=*/!HasPadding(graph_[l]), tape_.activations);
}

}  // namespace cadre
