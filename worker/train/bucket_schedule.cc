// Gradients are reduced bucket by bucket while backward still runs, and weights are gathered bucket
// by bucket while the next forward already runs.
//
// The idea. Parameters are grouped into buckets of some MiB, as in PyTorch's
// DistributedDataParallel (Li et al., VLDB 2020, section 3.2.3): large enough that latency does not
// dominate, small enough that the first reduction starts long before backward ends. The update is
// sharded, as in ZeRO (Rajbhandari et al., SC 2020, section 5): instead of an all-reduce, each rank
// reduces the interval that it owns, updates it with the only copy of its optimizer state, and
// gathers the rest. Reduce-scatter and all-gather together carry the same bytes as the all-reduce,
// but the all-gather can overlap with the next forward. Buckets are cut into chunks, and the chunk
// that the next forward needs first is sent first (Peng et al., ByteScheduler, SOSP 2019). The
// operations of a chunk:
//
//   backward of the bucket's last layer    kReduce
//   its reduction is done                  kUpdate                without norms
//   all reductions are done                kNorms, then kUpdate   with norms (clipping, LARS)
//   its update is done                     kGather                if the step gathers
//   the next forward of its first layer    waits for kGather
//
// kLoss comes before all of them, so that a step whose loss is not finite changes no weight.
//
// Two executors with different costs share this schedule:
// - On the host one thread executes what rank 0 selects by Priority (comm/collective_queue.h).
//   Chunks keep a large bucket from delaying an urgent small one. After kNorms, each update and its
//   gather are one operation, so that the first gather does not wait for every update.
// - On a device, operations are enqueued on a stream in the order in which they are returned, which
//   is the same on all ranks because they play equal tapes. Buckets are not cut. kNorms ends the
//   pass, which is the same place among the messages of a pipeline on all ranks. Gathers are
//   returned by the next BeginForward, in the order in which forward needs them. So forward and
//   the gathers that it waits for can be captured as one graph (step_recorder.h).
//
// A bucket whose layers are placed on other ranks has the same operations on this rank, so that all
// ranks execute one order; they do nothing, and follow kLoss immediately. Its gathers are waited
// for before the next AfterForwards, because no forward on this rank waits for them.
//
// Invariants. In each step every chunk is reduced once, updated at most once, and gathered at most
// once after its update. kLoss precedes every kReduce, and kNorms follows the last kReduce. If
// tables, policies and tapes are equal on all ranks, so are the operations that BucketSchedule
// returns; only the times at which it returns them differ. So collectives match between ranks.
//
// Cost: a step returns O(chunks) operations; nothing here depends on the number of elements.
//
// Limits. The reductions of a step must be done before the next AfterForwards. This holds because
// forward waits for every gather; after a step without `gather` the caller has to call Gather
// first.
#include "worker/train/bucket_schedule.h"

#include <algorithm>
#include <numeric>

namespace cadre {

using Kind = BucketOp::Kind;

BucketSchedule::BucketSchedule(const BucketTable& table, const Policy& policy)
    : table_(table), policy_(policy), forward_order_(table.buckets.size()) {
  std::iota(forward_order_.begin(), forward_order_.end(), 0);
  std::stable_sort(forward_order_.begin(), forward_order_.end(), [&](int a, int b) {
    return table.buckets[a].first_layer < table.buckets[b].first_layer;
  });
}

void BucketSchedule::BeginStep(bool gather) {
  state_.gather = gather;
  state_.first_pass = true;
  state_.last_forward = false;
  state_.last_backward = false;
  state_.reducing.assign(table_.buckets.size(), false);
  state_.layers_left.assign(table_.buckets.size(), 0);
  for (const std::vector<int>& of_layer : table_.of_layer) {
    for (const int b : of_layer) ++state_.layers_left[b];
  }
}

BucketOps BucketSchedule::BeginForward() {
  return std::exchange(state_.gathers_pending, false) ? ForAllChunks(Kind::kGather) : BucketOps();
}

BucketOps BucketSchedule::AfterForwards() {
  state_.stopped = false;
  state_.gathers_follow = state_.gather && !policy_.lazy_gathers;
  state_.reductions_left = 0;
  for (const BucketTable::Bucket& bucket : table_.buckets) state_.reductions_left += bucket.chunks;
  BucketOps ops = {{Kind::kLoss}};
  for (size_t b = 0; b < table_.buckets.size() && policy_.overlap; ++b) {
    if (!table_.buckets[b].held) AddReductions(b, ops);
  }
  return ops;
}

BucketOps BucketSchedule::AfterBackward(int layer) {
  BucketOps ops;
  if (!state_.last_backward) return ops;
  for (const int b : table_.of_layer[layer]) {
    if (--state_.layers_left[b] == 0 && policy_.overlap) AddReductions(b, ops);
  }
  return ops;
}

BucketOps BucketSchedule::EndPass() {
  BucketOps ops;
  if (!state_.last_backward) return ops;
  for (size_t b = 0; b < table_.buckets.size(); ++b) {
    if (!state_.reducing[b]) AddReductions(b, ops);
  }
  if (policy_.norms && policy_.lazy_gathers) ops.push_back({Kind::kNorms});
  if (state_.gather && policy_.lazy_gathers) {
    const BucketOps gathers = Gather();
    ops.insert(ops.end(), gathers.begin(), gathers.end());
  }
  return ops;
}

BucketOps BucketSchedule::Gather() {
  state_.gathers_pending = policy_.lazy_gathers && policy_.overlap;
  return state_.gathers_pending ? BucketOps() : ForAllChunks(Kind::kGather);
}

BucketOps BucketSchedule::Done(const BucketOp& op) {
  if (op.kind == Kind::kReduce) {
    const bool last = --state_.reductions_left == 0;
    if (state_.stopped) return {};
    if (policy_.norms) {
      return last && !policy_.lazy_gathers ? BucketOps{{Kind::kNorms}} : BucketOps();
    }
    BucketOps ops = {{Kind::kUpdate, op.bucket, op.chunk}};
    if (state_.gathers_follow) ops.push_back({Kind::kGather, op.bucket, op.chunk});
    return ops;
  }
  if (op.kind == Kind::kNorms && !state_.stopped) {
    return ForAllChunks(state_.gathers_follow ? Kind::kUpdateAndGather : Kind::kUpdate);
  }
  return {};
}

BucketOps BucketSchedule::Expected() const {
  BucketOps ops = state_.gathers_follow ? ForAllChunks(Kind::kGather) : BucketOps();
  if (policy_.norms) ops.push_back({Kind::kNorms});
  return ops;
}

// For the same layer, gathers go first: a gather ends the wait of the layer, while an update and a
// gather must still follow a reduction.
int64_t BucketSchedule::Priority(const BucketOp& op) const {
  if (op.bucket < 0) return -1;
  return int64_t{2} * table_.buckets[op.bucket].first_layer + (op.kind == Kind::kReduce ? 1 : 0);
}

void BucketSchedule::AddReductions(int bucket, BucketOps& ops) {
  state_.reducing[bucket] = true;
  AddChunks(Kind::kReduce, bucket, ops);
}

void BucketSchedule::AddChunks(Kind kind, int bucket, BucketOps& ops) const {
  for (int c = 0; c < table_.buckets[bucket].chunks; ++c) ops.push_back({kind, bucket, c});
}

BucketOps BucketSchedule::ForAllChunks(Kind kind) const {
  BucketOps ops;
  for (const int b : forward_order_) AddChunks(kind, b, ops);
  return ops;
}

}  // namespace cadre
