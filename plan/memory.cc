// Adds up what a worker will allocate, from the same tape and ownership that the worker executes.
// Weights and gradients count whole local shards, which forward and backward need; of the optimizer
// state a rank has only its owned slices. Activations are the block of the tape, in which buffers
// share memory if their lifetimes do not overlap. If a step has micro-batches of two sizes, the
// larger tape counts.
#include "plan/memory.h"

#include <algorithm>

#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/optimizer_state.h"
#include "plan/cost/communication_cost.h"
#include "plan/layer_part.h"
#include "plan/ownership.h"
#include "plan/tape.h"

namespace cadre {
namespace {

DType ActivationType(const v1::RunSpec& spec) {
  return spec.precision() == v1::RunSpec::BF16 ? DType::kBFloat16 : DType::kFloat32;
}

// Numbers that a rank uploads besides the inputs: the labels of its part of the loss, or the
// candidates of a sampled softmax and their offsets.
int64_t UploadedNumbers(const Graph& graph, const Tape& tape) {
  const int sampled = graph.sampled_layer();
  if (sampled == Graph::kNoLayer) {
    return tape.regions.back().inputs[0].shape().elements() / graph.classes();
  }
  const Shape scores = tape.regions[sampled].output.shape();
  return 2 * (graph[sampled].sampled_classes + scores.elements() / scores.dims().back());
}

// Bytes of a rank's part of a batch while it is uploaded to a device, or converted on the host.
int64_t UploadBytes(const Graph& graph, const Tape& tape, v1::Cluster::Device device) {
  const int64_t inputs = tape.input.shape().elements();
  const int64_t numbers = UploadedNumbers(graph, tape);
  const DType type = graph.takes_tokens() ? DType::kFloat32 : tape.activations;
  if (device != v1::Cluster::CUDA) return type == DType::kFloat32 ? 0 : inputs * SizeOf(type);
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

int64_t BytesPerWeight(DType activations) {
  const DType copy = DType::kBFloat16;
  return kBytesPerWord + (activations == copy ? SizeOf(copy) : 0);
}

v1::MemoryUse PlannedMemory(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, const Plan& plan, int rank,
                            v1::Cluster::Device device, int in_flight) {
  int64_t weights = 0;
  int64_t owned = 0;
  for (const BucketOwnership& bucket : OwnershipOf(plan, index, rank)) {
    weights += bucket.size;
    owned += bucket.slice_end() - bucket.slice_begin();
  }
  int64_t activations = 0;
  int64_t outgoing = 0;
  int64_t arriving = 0;
  int64_t between = 0;
  int64_t upload = 0;
  for (const int64_t samples : MicroBatchSizes(spec)) {
    const Tape tape = MakeTape(
        graph, plan, rank, samples, /*training=*/true, ActivationType(spec),
        device == v1::Cluster::CUDA ? PlacedMoves::kExchange : PlacedMoves::kSendAndReceive,
        device == v1::Cluster::CUDA ? Fusion::kCommon : Fusion::kHost);
    activations = std::max(activations, tape.words);
    upload = std::max(upload, UploadBytes(graph, tape, device));
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
  int64_t coding = 0;
  if (device == v1::Cluster::CUDA && CodesOnDevice(spec.averaging())) {
    coding = CodingBytes(index, plan.mesh.ranks());
  }
  const int64_t states = std::ssize(OptimizerStateNames(spec.optimizer()));
  v1::MemoryUse use;
  use.set_weights(BytesPerWeight(ActivationType(spec)) * weights);
  use.set_gradients(kBytesPerWord * weights * (spec.micro_batches() > 1 ? 2 : 1));
  use.set_optimizer(kBytesPerWord * owned * states);
  use.set_activations(kBytesPerWord * activations * in_flight);
  use.set_buffers(outgoing + arriving + between + upload + coding);
  return use;
}

}  // namespace cadre
