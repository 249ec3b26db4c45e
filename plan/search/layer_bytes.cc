#include "plan/search/layer_bytes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/algorithm/container.h"
#include "model/ops/operation.h"
#include "plan/cost/communication_cost.h"
#include "plan/layer_memory.h"
#include "plan/memory.h"
#include "plan/search/move_model.h"

namespace cadre {
namespace {

// The input rows (or columns) that the largest part of a window's output needs.
int64_t WithHalo(const WindowRows& rows, int64_t parts) {
  if (parts == 1) return rows.in;
  const int64_t needed = (LargestPart(rows.out, parts) - 1) * rows.stride + rows.reach;
  return std::min(rows.in, std::max(needed, LargestPart(rows.in, parts)));
}

int64_t OutputElements(const GraphLayer& layer, int64_t samples, const Parts& parts) {
  int64_t elements = LargestPart(samples, parts[0]);
  for (int d = 0; d < layer.output.rank(); ++d) {
    elements *= LargestPart(layer.output[d], parts[d + 1]);
  }
  return elements;
}

int64_t InputElements(const GraphLayer& layer, int input, int64_t samples, const Parts& parts) {
  const Halo halo = HaloOf(layer);
  const Shape& shape = layer.input_shapes[input];
  int64_t elements = LargestPart(samples, parts[0]);
  for (int d = 0; d < shape.rank(); ++d) {
    const int64_t cut = parts[d + 1];
    if (halo.needed && d + 1 == Halo::kRowDimension) {
      elements *= WithHalo(halo.rows, cut);
    } else if (halo.needed && d + 1 == Halo::kColumnDimension) {
      elements *= WithHalo(halo.columns, cut);
    } else {
      elements *= LargestPart(shape[d], cut);
    }
  }
  return elements;
}

DType ActivationType(const PlanProblem& problem) {
  return problem.bf16_weights ? DType::kBFloat16 : DType::kFloat32;
}

bool ReadsInput(const GraphLayer& layer) {
  return absl::c_linear_search(layer.inputs, Graph::kInput);
}

// The words of elements in the type of activations.
int64_t Words(const PlanProblem& problem, int64_t elements) {
  return LargestPart(elements * SizeOf(ActivationType(problem)), kBytesPerWord);
}

// The elements with rows that are padded as those of the loss's scores may be.
int64_t WithPaddedRows(const PlanProblem& problem, int64_t elements, int64_t columns) {
  if (problem.device != v1::Cluster::CUDA || columns == 0) return elements;
  return elements / columns * ScoreRow(columns, ActivationType(problem));
}

// The layer that computes the loss's scores, if nothing else reads them.
int ScorerOf(const Graph& graph) {
  const int loss = graph.size() - 1;
  const int scorer = graph[loss].inputs[0];
  const bool alone = scorer != Graph::kInput && graph.consumers(scorer) == std::vector<int>{loss};
  return alone ? scorer : Graph::kNoLayer;
}

// Whether the gradient of the loss overwrites the scores that the layer before has computed. With
// several ranks the scores may have to be moved, which depends on the split of that layer, too.
bool OverwritesScores(const PlanProblem& problem, const GraphLayer& layer) {
  if (problem.ranks > 1 || layer.kind != LayerKind::kSoftmaxCrossEntropy) return false;
  const int scorer = ScorerOf(*problem.graph);
  return scorer != Graph::kNoLayer && !Describe((*problem.graph)[scorer].kind).saved.y;
}

// The rows of scores that the host computes at a time, if the samples are divided among all ranks
// (plan/tape.cc); 0: they are all in memory, as they are on GPUs.
int64_t ChunkRows(const PlanProblem& problem) {
  const Graph& graph = *problem.graph;
  const int scorer = ScorerOf(graph);
  if (problem.device == v1::Cluster::CUDA || !problem.pins.at.empty() ||
      scorer == Graph::kNoLayer || graph[scorer].kind != LayerKind::kFullyConnected ||
      graph[scorer].sampled_classes > 0) {
    return 0;
  }
  const int64_t classes = graph[scorer].output.dims().back();
  const int64_t rows = LargestPart(LargestMicroBatch(problem), problem.ranks) *
                       (graph[scorer].output.elements() / classes);
  const int64_t per_chunk = ScoreRowsPerChunk(rows, classes, ActivationType(problem));
  return per_chunk < rows ? per_chunk : 0;
}

// The larger of input and output. Whether the scores are computed in chunks depends on the splits
// of the scorer and of the loss, and each of the two counts for itself: if one divides the samples
// among all ranks and the other does not, the other counts the scores twice.
int64_t TransientWords(const PlanProblem& problem, const GraphLayer& layer, const Parts& input,
                       const Parts& output, int64_t input_words, int64_t output_words) {
  const int64_t words = std::max(input_words, output_words);
  const int64_t rows = ChunkRows(problem);
  const bool is_loss = layer.kind == LayerKind::kSoftmaxCrossEntropy;
  if (rows == 0 || (!is_loss && &(*problem.graph)[ScorerOf(*problem.graph)] != &layer)) {
    return words;
  }
  if ((is_loss ? input : output)[0] < problem.ranks) return 2 * words;
  const int64_t chunk = Words(problem, rows * layer.output.dims().back());
  return is_loss ? 0 : std::max(input_words, chunk);
}

// Elements of batches that are being uploaded to a GPU, two in the type of the loader and one for
// the tape (plan/memory.h): of the network's input, at a layer that reads it; of labels and
// candidates.
int64_t UploadElements(const PlanProblem& problem, const GraphLayer& layer, int64_t input_elements,
                       int64_t output_elements) {
  constexpr int64_t kCopies = 3;
  if (problem.device != v1::Cluster::CUDA) return 0;
  if (ReadsInput(layer)) return kCopies * input_elements;
  if (layer.kind == LayerKind::kSoftmaxCrossEntropy) {
    return kCopies * LargestPart(input_elements, layer.input().dims().back());
  }
  // Candidates have offsets.
  if (layer.sampled_classes == 0) return 0;
  const int64_t rows = LargestPart(output_elements, 1 + layer.sampled_classes);
  return kCopies * 2 * (layer.sampled_classes + rows);
}

// What forward saves for backward, besides input and output, and scratch memory of backward.
int64_t SavedWords(const PlanProblem& problem, const GraphLayer& layer, const LayerExtents& here) {
  const DType type = ActivationType(problem);
  const LayerMemory memory = MemoryOfLayer(layer, here, type, v1::Cluster::CPU);
  const ScoreMemory scores = ScoresOfLayer(layer, here, type, problem.device);
  return LargestPart(memory.saved * SizeOf(memory.saved_type), kBytesPerWord) +
         Words(problem, memory.backward_scratch) + Words(problem, scores.backward);
}

// Elements in evaluation, if the loss samples classes, of its layer and of the one that scores
// them; 0 for other layers, which need no more than in training.
int64_t EvaluationElements(const PlanProblem& problem, const GraphLayer& layer, const Parts& input,
                           const Parts& output) {
  const Graph& graph = *problem.graph;
  const int64_t samples = LargestMicroBatch(problem);
  if (layer.settings.softmax_cross_entropy().has_sampling()) {
    // The other layer may divide samples among up to all ranks.
    const int64_t batch =
        std::min(samples, std::max<int64_t>(problem.ranks, EvaluationSamples(graph, samples, 1)));
    const int64_t labels = LargestPart(graph.labels_per_sample(), input[1]);
    return 2 * LargestPart(batch, input[0]) * labels * graph.classes();
  }
  if (layer.sampled_classes == 0) return 0;
  const int64_t batch = EvaluationSamples(graph, samples, output[0]);
  const Shape& in = layer.input();
  const int64_t tokens = in.rank() == 2 ? LargestPart(in[0], output[1]) : 1;
  const int64_t rows = LargestPart(batch, output[0]) * tokens;
  return rows * (in.dims().back() + 2 * graph.classes());
}

Parts PartsOf(const Mesh& mesh, const Layout& layout, int rank) {
  Parts parts = {1, 1, 1, 1};
  for (int d = 0; d < rank; ++d) parts[d] = mesh.Size(layout.axes(d));
  return parts;
}

}  // namespace

bool FollowsNorm(const Graph& graph, const GraphLayer& layer) {
  const auto is_norm = [&](int l) {
    return l != Graph::kInput && graph[l].kind == LayerKind::kBatchNorm;
  };
  const int producer = layer.inputs[0];
  if (layer.kind != LayerKind::kRelu || producer == Graph::kInput) return false;
  if (graph[producer].kind != LayerKind::kAdd) return is_norm(producer);
  return std::any_of(graph[producer].inputs.begin(), graph[producer].inputs.end(), is_norm);
}

int64_t LargestMicroBatch(const PlanProblem& problem) {
  return LargestPart(problem.batch, problem.micro_batches);
}

std::vector<int64_t> MicroBatchSizes(const PlanProblem& problem) {
  const int64_t smallest = problem.batch / problem.micro_batches;
  if (smallest == LargestMicroBatch(problem)) return {smallest};
  return {smallest, smallest + 1};
}

int64_t ParameterBytes(const PlanProblem& problem, int64_t elements, int64_t owners) {
  const int gradients = problem.micro_batches > 1 ? 2 : 1;
  const int64_t copies = problem.bf16_weights ? LargestPart(elements, 2) : 0;
  const int64_t owned = LargestPart(elements, owners);
  const double exchange = problem.ranks > 1 ? problem.exchange_shared : problem.exchange_alone;
  return kBytesPerWord * (elements * (1 + gradients) + copies + owned * problem.optimizer_states) +
         static_cast<int64_t>(exchange * static_cast<double>(owned));
}

int64_t ActivationBytes(const PlanProblem& problem, const GraphLayer& layer,
                        std::span<const Parts> inputs, const Parts& output, int64_t heads,
                        const RecomputedLayer& again, int in_flight) {
  const int64_t samples = LargestMicroBatch(problem);
  int64_t input_elements = 0;
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    input_elements += InputElements(layer, i, samples, inputs[std::min(i, inputs.size() - 1)]);
  }
  int64_t output_elements = OutputElements(layer, samples, output);
  const int last = layer.output.rank();
  const int64_t features = last == 0 ? 1 : LargestPart(layer.output[last - 1], output[last]);
  if (layer.kind == LayerKind::kFullyConnected && layer.sampled_classes == 0) {
    output_elements = WithPaddedRows(problem, output_elements, features);
  }
  if (layer.kind == LayerKind::kSoftmaxCrossEntropy) {
    input_elements = WithPaddedRows(problem, input_elements, layer.input().dims().back());
  }
  const SavedForBackward saved = Describe(layer.kind).saved;
  int64_t saved_y = saved.y ? Words(problem, output_elements) : 0;
  // It saves bits. If a plan does not fuse it, the term of its gradient below, which does not live
  // until the end of forward, is enough for its output.
  if (FollowsNorm(*problem.graph, layer)) saved_y = LargestPart(output_elements, 32) + features;
  // Numbers of tokens are always fp32.
  const int64_t input_words = ReadsInput(layer) && problem.graph->takes_tokens()
                                  ? input_elements
                                  : Words(problem, input_elements);
  const int64_t transient = OverwritesScores(problem, layer)
                                ? 0
                                : TransientWords(problem, layer, inputs[0], output, input_words,
                                                 Words(problem, output_elements));
  LayerExtents here = {.samples = LargestPart(samples, output[0]),
                       .output = output_elements,
                       .features = features,
                       .input_features = layer.input().dims().back()};
  if (layer.kind == LayerKind::kAttention) {
    here.heads = LargestPart(layer.parameters[0].shape[0], heads);
  }
  int64_t training =
      (saved.x ? input_words : 0) + saved_y + SavedWords(problem, layer, here) + transient;
  if (again.in_block) {
    const int64_t statistics = layer.kind == LayerKind::kBatchNorm ? 2 * features : 0;
    training = std::ceil(static_cast<double>(training) * again.share_in_memory) + statistics +
               (again.keeps_output ? Words(problem, output_elements) : 0);
  }
  const int64_t evaluation = Words(problem, EvaluationElements(problem, layer, inputs[0], output));
  return kBytesPerWord * (UploadElements(problem, layer, input_elements, output_elements) +
                          std::max(in_flight * training, evaluation));
}

int64_t LayerBytes(const PlanProblem& problem, const Mesh& mesh, int layer,
                   const LayerLayouts& layouts, const RecomputedLayer& again, int in_flight) {
  const GraphLayer& graph_layer = (*problem.graph)[layer];
  int64_t bytes = 0;
  int64_t heads = 1;
  int ranks = mesh.ranks();
  for (const AxisCoordinate& at : layouts.at) ranks /= mesh.Size(at.axis);
  for (size_t p = 0; p < graph_layer.parameters.size(); ++p) {
    int64_t local = 1;
    int parts = 1;
    for (int d = 0; d < graph_layer.parameters[p].shape.rank(); ++d) {
      const int cut = mesh.Size(layouts.parameters[p].axes(d));
      local *= LargestPart(graph_layer.parameters[p].shape[d], cut);
      parts *= cut;
      if (p == 0 && d == 0) heads = cut;
    }
    // The ranks that hold the same elements divide the ownership of them.
    bytes += ParameterBytes(problem, local, ranks / parts);
  }
  std::vector<Parts> inputs;
  for (size_t i = 0; i < graph_layer.inputs.size(); ++i) {
    inputs.push_back(PartsOf(mesh, layouts.inputs[i], graph_layer.input_shapes[i].rank() + 1));
  }
  const Parts output = PartsOf(mesh, layouts.output, graph_layer.output.rank() + 1);
  return bytes + ActivationBytes(problem, graph_layer, inputs, output, heads, again, in_flight);
}

}  // namespace cadre
