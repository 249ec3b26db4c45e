#include "plan/layer_memory.h"

#include <algorithm>
#include <utility>

#include "plan/layer_part.h"

namespace cadre {
namespace {

// Elements that hold an fp32 number.
int64_t ElementsPerNumber(DType activations) {
  return SizeOf(DType::kFloat32) / SizeOf(activations);
}

// The next interval of so many elements after `end`, which it advances.
Interval IntervalAfter(int64_t elements, int64_t& end) {
  const int64_t begin = AlignedOffset(end);
  end = begin + elements;
  return {begin, end};
}

// Elements of a block of scores, which remain in the second-level cache of large GPUs.
constexpr int64_t kMaxScores = int64_t{1} << 22;

// Scores of the largest block: whole heads, or rows of one head.
int64_t LargestScoreBlock(int64_t samples, int64_t tokens, int64_t heads) {
  const int64_t of_head = tokens * tokens;
  if (of_head == 0) return 0;
  if (of_head > kMaxScores) return std::max<int64_t>(1, kMaxScores / tokens) * tokens;
  return of_head * std::min(samples * heads, kMaxScores / of_head);
}

// Bytes of the workspace of the library's fused backward: gradients of scores, by whole tiles, and
// a sum for each row of them. 0 if the library has no such kernel, or may not use so much.
int64_t FusedBackwardBytes(int64_t samples, int64_t tokens, int64_t heads, int64_t head_features) {
  constexpr int64_t kTile = 64, kFeatures = 8, kMaxFeatures = 128, kAlignment = 256;
  constexpr int64_t kLimit = int64_t{2} << 30;
  if (head_features % kFeatures != 0 || head_features > kMaxFeatures) return 0;
  const int64_t padded = (tokens + kTile - 1) / kTile * kTile;
  const int64_t bytes =
      samples * heads *
          (padded * padded * SizeOf(DType::kBFloat16) + tokens * SizeOf(DType::kFloat32)) +
      kAlignment;
  return bytes <= kLimit ? bytes : 0;
}

}  // namespace

AttentionMemory MemoryOfAttention(int64_t samples, int64_t tokens, int64_t heads,
                                  int64_t head_features, DType activations) {
  const int64_t rows = samples * tokens * heads;
  AttentionMemory memory;
  memory.qkv = 3 * rows * head_features;
  memory.context = rows * head_features;
  memory.statistics = rows * ElementsPerNumber(activations);
  memory.context_begin = AlignedOffset(memory.qkv);
  memory.statistics_begin = AlignedOffset(memory.context_begin + memory.context);
  return memory;
}

ScoreMemory MemoryOfScores(int64_t samples, int64_t tokens, int64_t heads, int64_t head_features,
                           bool fuses, DType activations) {
  const int64_t scores = LargestScoreBlock(samples, tokens, heads);
  if (scores == 0) return {};
  // Forward replaces fp32 scores by probabilities; backward has fp32 scores and gradients of
  // probabilities, which probabilities and gradients of scores replace.
  if (activations == DType::kFloat32) return {.forward = scores, .backward = 2 * scores};
  ScoreMemory memory{.forward = 2 * (scores + (scores + 1) / 2), .backward = 6 * scores};
  if (fuses) {
    const int64_t bytes = FusedBackwardBytes(samples, tokens, heads, head_features);
    memory.backward = std::max<int64_t>(memory.backward, bytes / SizeOf(activations));
  }
  return memory;
}

int64_t ScoreRow(int64_t classes, DType activations) {
  // With fewer classes the padding would be a large part of a row, and the product is small.
  constexpr int64_t kMinClasses = 512;
  constexpr int64_t kVectorBytes = 16, kColumns = 64;
  const int64_t bytes = classes * SizeOf(activations);
  if (classes < kMinClasses || bytes % kVectorBytes == 0) return classes;
  return (classes + kColumns - 1) / kColumns * kColumns;
}

int64_t ScoreRowsPerChunk(int64_t rows, int64_t classes, DType activations) {
  const int64_t max_rows = std::max<int64_t>(1, kMaxScoreBytes / (classes * SizeOf(activations)));
  return rows <= max_rows ? rows : LargestPart(rows, LargestPart(rows, max_rows));
}

LstmDims LstmDimsOf(const GraphLayer& layer, int64_t samples) {
  const v1::Lstm& lstm = layer.settings.lstm();
  return {.samples = samples,
          .tokens = layer.input()[0],
          .features = layer.input()[1],
          .hidden = lstm.hidden(),
          .outputs = layer.output[1],
          .projects = lstm.projection() > 0};
}

LstmMemory MemoryOfLstm(const LstmDims& dims, DType activations) {
  const int64_t rows = dims.samples * dims.tokens;
  const int64_t per_number = ElementsPerNumber(activations);
  int64_t end = 0;
  const auto next = [&end](int64_t elements) { return IntervalAfter(elements, end); };
  LstmMemory memory;
  memory.gates = next(rows * 4 * dims.hidden);
  memory.cells = next(rows * dims.hidden * per_number);
  memory.outputs = next(rows * dims.outputs);
  memory.projected = next(dims.projects ? rows * dims.hidden : 0);
  memory.saved = std::exchange(end, 0);
  memory.inputs = next(rows * dims.features);
  memory.recurrent = next(dims.samples * 4 * dims.hidden);
  memory.forward_scratch = std::exchange(end, 0);
  memory.backward_inputs = next(rows * dims.features);
  memory.doutputs = next(rows * dims.outputs);
  memory.drecurrent = next(dims.samples * dims.outputs);
  memory.dprojected = next(dims.projects ? dims.samples * dims.hidden : 0);
  memory.dcells = next(dims.samples * dims.hidden * per_number);
  memory.backward_scratch = end;
  return memory;
}

SampledMemory MemoryOfSampled(int64_t rows, int64_t sampled, int64_t features, DType activations) {
  const int64_t candidates = sampled + rows;
  const int64_t per_number = ElementsPerNumber(activations);
  int64_t end = 0;
  const auto next = [&end](int64_t elements) { return IntervalAfter(elements, end); };
  SampledMemory memory;
  memory.weights = next(candidates * features);
  memory.offsets = next(candidates * per_number);
  memory.biases = next(candidates * per_number);
  memory.label_scores = next(rows * per_number);
  memory.scores = next(rows * sampled * per_number);
  memory.forward_scratch = std::exchange(end, 0);
  memory.backward_weights = next(candidates * features);
  memory.dlabel_scores = next(rows);
  memory.dscores = next(rows * sampled);
  memory.label_terms = next(rows * features);
  memory.dweights = next(candidates * features * per_number);
  memory.dbiases = next(candidates * per_number);
  memory.backward_scratch = end;
  return memory;
}

ScoreMemory ScoresOfLayer(const GraphLayer& layer, const LayerExtents& here, DType activations,
                          v1::Cluster::Device device) {
  if (device != v1::Cluster::CUDA || layer.kind != LayerKind::kAttention) return {};
  return MemoryOfScores(here.samples, layer.output[0], here.heads, layer.parameters[0].shape[2],
                        /*fuses=*/!HasPadding(layer), activations);
}

LayerMemory MemoryOfLayer(const GraphLayer& layer, const LayerExtents& here, DType activations,
                          v1::Cluster::Device device, bool needs_gradient) {
  const int64_t rows = here.output / std::max<int64_t>(1, here.features);
  switch (layer.kind) {
    case LayerKind::kMaxPool:            // position of the maximum
    case LayerKind::kLocalResponseNorm:  // denominators
      return {.saved = here.output};
    case LayerKind::kBatchNorm:  // mean and inverse standard deviation
      return {.saved = 2 * here.features};
    case LayerKind::kLayerNorm:
      // The kernel always computes the gradient of the input.
      return {.saved = 2 * rows, .backward_scratch = needs_gradient ? 0 : here.output};
    case LayerKind::kClassToken: {
      // The first tokens of the samples, or their gradients.
      const int64_t first = here.samples * here.features;
      return {.forward_scratch = first, .backward_scratch = first};
    }
    case LayerKind::kFullyConnected: {
      const int64_t sampled = layer.sampled_classes;
      if (sampled == 0) return {};
      const SampledMemory memory = MemoryOfSampled(rows, sampled, here.input_features, activations);
      return {.saved = sampled + rows,
              .forward_scratch = memory.forward_scratch,
              .backward_scratch = memory.backward_scratch};
    }
    case LayerKind::kAttention: {
      const AttentionMemory memory = MemoryOfAttention(here.samples, layer.output[0], here.heads,
                                                       layer.parameters[0].shape[2], activations);
      const ScoreMemory scores = ScoresOfLayer(layer, here, activations, device);
      const int64_t gradients = memory.scratch();
      return {.saved_type = activations,
              .saved = memory.saved(),
              .forward_scratch = scores.forward,
              .backward_scratch =
                  scores.backward == 0 ? gradients : AlignedOffset(gradients) + scores.backward};
    }
    case LayerKind::kLstm: {
      const LstmMemory memory = MemoryOfLstm(LstmDimsOf(layer, here.samples), activations);
      return {.saved_type = activations,
              .saved = memory.saved,
              .forward_scratch = memory.forward_scratch,
              .backward_scratch = memory.backward_scratch};
    }
    case LayerKind::kDotProductAttention: {
      // One for each query and each token of the source. Forward has scores in scratch memory, as
      // fp32; backward the gradients of probabilities (fp32) and of scores, and a part of that of
      // the source.
      const int64_t probabilities = here.samples * layer.output[0] * layer.input(1)[0];
      const int64_t scores = probabilities * ElementsPerNumber(activations);
      return {.saved_type = activations,
              .saved = probabilities,
              .forward_scratch = scores,
              .backward_scratch = AlignedOffset(scores) + AlignedOffset(probabilities) +
                                  here.samples * layer.input(1).elements()};
    }
    default:
      return {};
  }
}

}  // namespace cadre
