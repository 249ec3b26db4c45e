#include "spec/memory.h"

#include <algorithm>

#include "spec/optimizer_state.h"
#include "spec/ownership.h"
#include "spec/tape.h"

namespace cadre {
namespace {

constexpr int64_t kBytesPerWord = 4;

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

v1::MemoryUse PlannedMemory(const v1::RunSpec& spec, const Graph& graph,
                            const ParameterIndex& index, const Plan& plan, int rank) {
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
  for (const int64_t samples : MicroBatchSizes(spec)) {
    const Tape tape = MakeTape(graph, plan, rank, samples, /*training=*/true);
    activations = std::max(activations, tape.words);
    for (const TapeOp& op : tape.ops) {
      between = std::max(between, op.move.scratch_words());
      for (const Exchange& step : op.move.steps) {
        outgoing = std::max(outgoing, step.packed_words());
        arriving = std::max(arriving, step.unpacked_words());
      }
    }
  }
  const auto states = static_cast<int64_t>(OptimizerStateNames(spec.optimizer()).size());
  const auto bytes = [](int64_t words) { return static_cast<uint64_t>(kBytesPerWord * words); };
  v1::MemoryUse use;
  use.set_weights(bytes(weights));
  use.set_gradients(bytes(weights * (spec.micro_batches() > 1 ? 2 : 1)));
  use.set_optimizer(bytes(owned * states));
  use.set_activations(bytes(activations));
  use.set_buffers(bytes(outgoing + arriving + between));
  return use;
}

}  // namespace cadre
