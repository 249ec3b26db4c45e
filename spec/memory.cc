#include "spec/memory.h"

#include <algorithm>

#include "spec/optimizer_state.h"
#include "spec/ownership.h"
#include "spec/tape.h"

namespace cadre {
namespace {

constexpr int64_t kBytesPerWord = 4;

// Bytes of what a rank's part of a batch takes on its way to a device.
int64_t UploadBytes(const Graph& graph, const Tape& tape) {
  const int64_t inputs = tape.input.shape().elements();
  const int64_t labels = tape.places.back().inputs[0].shape().elements() / graph.classes();
  const DType type = graph.takes_tokens() ? DType::kFloat32 : tape.activations;
  return 2 * kBytesPerWord * (inputs + labels) + inputs * static_cast<int64_t>(SizeOf(type)) +
         kBytesPerWord * labels;
}

}  // namespace

int64_t MicroBatchSamples(const v1::RunSpec& spec) {
  const int64_t parts = std::max<int64_t>(1, spec.micro_batches());
  return (spec.batch_per_group() + parts - 1) / parts;
}

std::vector<int64_t> MicroBatchSizes(const v1::RunSpec& spec) {
  const int64_t parts = std::max<int64_t>(1, spec.micro_batches());
  const int64_t least = spec.batch_per_group() / parts;
  if (least == MicroBatchSamples(spec)) return {least};
  return {least, least + 1};
}

DType ActivationType(const v1::RunSpec& spec) {
  return spec.precision() == v1::BF16 ? DType::kBFloat16 : DType::kFloat32;
}

int64_t BytesPerWeight(DType activations) {
  const DType copy = DType::kBFloat16;
  return kBytesPerWord + (activations == copy ? static_cast<int64_t>(SizeOf(copy)) : 0);
}

v1::MemoryUse PlannedMemory(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, const Plan& plan, int rank,
                            v1::ComputeDevice device) {
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
    const Tape tape = MakeTape(graph, plan, rank, samples, /*training=*/true, ActivationType(spec));
    activations = std::max(activations, tape.words);
    if (device == v1::CUDA) upload = std::max(upload, UploadBytes(graph, tape));
    for (const TapeOp& op : tape.ops) {
      if (op.move.is_identity()) continue;
      const DType type = tape.buffers[static_cast<size_t>(op.y)].type;
      const auto moved = [type](int64_t elements) {
        return elements * static_cast<int64_t>(SizeOf(type));
      };
      between = std::max(between, moved(op.move.scratch_words()));
      for (const Exchange& step : op.move.steps) {
        outgoing = std::max(outgoing, moved(step.packed_words()));
        arriving = std::max(arriving, moved(step.unpacked_words()));
      }
    }
  }
  const auto states = static_cast<int64_t>(OptimizerStateNames(spec.optimizer()).size());
  const auto bytes = [](int64_t words) { return static_cast<uint64_t>(kBytesPerWord * words); };
  v1::MemoryUse use;
  use.set_weights(static_cast<uint64_t>(BytesPerWeight(ActivationType(spec)) * weights));
  use.set_gradients(bytes(weights * (spec.micro_batches() > 1 ? 2 : 1)));
  use.set_optimizer(bytes(owned * states));
  use.set_activations(bytes(activations));
  use.set_buffers(static_cast<uint64_t>(outgoing + arriving + between + upload));
  return use;
}

}  // namespace cadre
