// Adds up what a worker will allocate, from the same tape and ownership that the worker executes.
// Weights and gradients count whole local shards, which forward and backward need; of the optimizer
// state a rank has only its owned slices. Activations are the block of the tape, in which buffers
// share memory if their lifetimes do not overlap. If a step has micro-batches of two sizes, the
// larger tape counts.
//
// An evaluation tape is smaller than a training tape of as many samples, except if training samples
// the classes of the loss: evaluation then computes more scores. So evaluation batches are cut such
// that they have about as many scores as a training step. If the scores of one sample are more than
// that, the evaluation tape determines the memory.
#include "plan/memory.h"

#include <algorithm>

#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/optimizer_state.h"
#include "plan/cost/communication_cost.h"
#include "plan/exchange_memory.h"
#include "plan/layer_part.h"
#include "plan/ownership.h"
#include "plan/tape.h"

namespace cadre {
namespace {

DType ActivationType(const v1::RunSpec& spec) {
  return spec.precision() == v1::RunSpec::BF16 ? DType::kBFloat16 : DType::kFloat32;
}

// Memory that is sized for the largest of a rank's tapes.
struct LargestTapes {
  // What is loaded of a batch: inputs, labels of the loss, candidates of a sampled softmax.
  int64_t inputs = 0, labels = 0, candidates = 0;
  // Bytes of packed messages, and of intermediate results of moves.
  int64_t outgoing = 0, arriving = 0, between = 0;

  void Add(const Tape& tape);
  // Bytes of the batch while it is uploaded to a device, or converted on the host.
  int64_t UploadBytes(DType type, v1::Cluster::Device device) const;
};

void LargestTapes::Add(const Tape& tape) {
  const Shape scores = tape.regions.back().inputs[0].shape();
  inputs = std::max(inputs, tape.input.shape().elements());
  labels = std::max(labels, scores.elements() / scores.dims().back());
  candidates = std::max(candidates, tape.candidates);
  for (const TapeOp& op : tape.ops) {
    if (!PacksOutsideOfTape(op)) continue;
    const DType type = tape.buffers[op.y].type;
    const auto moved = [type](int64_t elements) -> int64_t { return elements * SizeOf(type); };
    between = std::max(between, moved(op.move.scratch_elements()));
    for (const Exchange& step : op.move.steps) {
      outgoing = std::max(outgoing, moved(step.packed_elements()));
      arriving = std::max(arriving, moved(step.unpacked_elements()));
    }
  }
}

int64_t LargestTapes::UploadBytes(DType type, v1::Cluster::Device device) const {
  if (device != v1::Cluster::CUDA) return type == DType::kFloat32 ? 0 : inputs * SizeOf(type);
  // Candidates have offsets.
  const int64_t numbers = labels + 2 * candidates;
  return 2 * kBytesPerWord * (inputs + numbers) + inputs * SizeOf(type) + kBytesPerWord * numbers;
}

// Three values, and two codes, of each value of the rank's part of the model; and, in groups of
// several ranks, what it sends to the others and receives from them.
int64_t CodingBytes(const ParameterIndex& index, int64_t ranks) {
  const int64_t part = index.size() / ranks + 2 * kUnitSize;
  return kBytesPerWord * part * (ranks > 1 ? 7 : 5);
}

}  // namespace

int MicroBatches(const v1::RunSpec& spec) {
  return static_cast<int>(std::max<uint32_t>(1, spec.micro_batches()));
}

int64_t MicroBatchSamples(const v1::RunSpec& spec) {
  return LargestPart(spec.batch_per_group(), MicroBatches(spec));
}

std::vector<int64_t> MicroBatchSizes(const v1::RunSpec& spec) {
  const int64_t smallest = spec.batch_per_group() / MicroBatches(spec);
  if (smallest == MicroBatchSamples(spec)) return {smallest};
  return {smallest, smallest + 1};
}

int64_t EvaluationSamples(const Graph& graph, int64_t samples, int64_t parts) {
  const int scorer = graph.sampled_layer();
  if (scorer == Graph::kNoLayer) return samples;
  const int64_t scores = 1 + graph[scorer].sampled_classes;
  const int64_t of_part = std::max<int64_t>(1, samples / parts * scores / graph.classes());
  return std::min(samples, parts * of_part);
}

int64_t EvaluationSamples(const v1::RunSpec& spec, const Graph& graph, const Plan& plan) {
  const int scorer = graph.sampled_layer();
  const int64_t parts =
      scorer == Graph::kNoLayer ? 1 : plan.mesh.Size(plan.layers[scorer].output.axes(0));
  return EvaluationSamples(graph, MicroBatchSamples(spec), parts);
}

int64_t BytesPerWeight(DType activations) {
  const DType copy = DType::kBFloat16;
  return kBytesPerWord + (activations == copy ? SizeOf(copy) : 0);
}

v1::MemoryUse PlannedMemory(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, const Plan& plan, int rank,
                            v1::Cluster::Device device, int in_flight) {
  int64_t weights = 0;
  int64_t owned = 0;
  const std::vector<BucketOwnership> buckets = OwnershipOf(plan, index, rank);
  for (const BucketOwnership& bucket : buckets) {
    weights += bucket.size;
    owned += bucket.slice_end() - bucket.slice_begin();
  }
  // The largest of the training tapes.
  int64_t block_words = 0;
  int64_t pass_words = 0;
  LargestTapes largest;
  const auto make = [&](int64_t samples, bool training) {
    Tape tape = MakeTape(graph, plan, rank, samples, training, ActivationType(spec),
                         device == v1::Cluster::CUDA ? Fusion::kCommon : Fusion::kHost, device);
    largest.Add(tape);
    return tape;
  };
  for (const int64_t samples : MicroBatchSizes(spec)) {
    Tape tape = make(samples, /*training=*/true);
    if (in_flight > 1) SeparatePasses(tape);
    block_words = std::max(block_words, tape.words);
    pass_words = std::max(pass_words, tape.pass_words);
  }
  int64_t activations = in_flight * block_words + pass_words;
  if (graph.sampled_layer() != Graph::kNoLayer) {
    const Tape tape = make(EvaluationSamples(spec, graph, plan), /*training=*/false);
    activations = std::max(activations, tape.words);
  }
  int64_t coding = 0;
  if (device == v1::Cluster::CUDA && CodesOnDevice(spec.averaging())) {
    coding = CodingBytes(index, plan.mesh.ranks());
  }
  const int64_t states = std::ssize(OptimizerStateNames(spec.optimizer()));
  v1::MemoryUse use;
  use.set_weights(BytesPerWeight(ActivationType(spec)) * weights);
  use.set_gradients(kBytesPerWord * weights * (spec.micro_batches() > 1 ? 2 : 1));
  use.set_optimizer(kBytesPerWord * owned * states);
  use.set_activations(kBytesPerWord * activations);
  const DType inputs = graph.takes_tokens() ? DType::kFloat32 : ActivationType(spec);
  use.set_buffers(largest.outgoing + largest.arriving + largest.between +
                  largest.UploadBytes(inputs, device) + coding);
  use.set_exchange(
      ExchangeBytes(spec, index, buckets, rank, plan.mesh.ranks(), device == v1::Cluster::CUDA));
  return use;
}

int64_t DeviceBytes(const v1::MemoryUse& use, v1::Cluster::Device device) {
  return use.weights() + use.gradients() + use.optimizer() + use.activations() + use.buffers() +
         (device == v1::Cluster::CUDA ? 0 : use.exchange());
}

}  // namespace cadre
