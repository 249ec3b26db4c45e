#include "worker/train/thread_flow.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"

namespace cadre {
namespace {

using Kind = BucketOp::Kind;

// Shorter waits cost only the call and are not traced.
constexpr absl::Duration kMinTracedWait = absl::Microseconds(5);

// kUpdateAndGather has the key of its gather, because forward waits for that key.
uint64_t KeyOf(const BucketOp& op) {
  const Kind kind = op.kind == Kind::kUpdateAndGather ? Kind::kGather : op.kind;
  const uint64_t kind_bits = static_cast<uint64_t>(kind);
  const uint64_t bucket_bits = op.bucket + 1;
  return kind_bits << 56 | bucket_bits << 32 | static_cast<uint32_t>(op.chunk);
}

}  // namespace

ThreadFlow::ThreadFlow(const Context& context, Transport& transport)
    : GradientFlow(context, /*on_stream=*/false), changed_(buckets(), true) {
  if (transport.size() > 1) queue_ = std::make_unique<CollectiveQueue>(transport);
}

// ---- The rank's own thread

absl::Status ThreadFlow::Start(const BucketOps& ops) {
  for (const BucketOp& op : ops) {
    if (op.kind == Kind::kReduce && op.chunk == 0) Accumulate(op.bucket);
    // An update sends nothing, so it is executed now and not queued with the collectives.
    if (queue_ == nullptr || op.kind == Kind::kUpdate) {
      CADRE_RETURN_IF_ERROR(Perform(op));
      continue;
    }
    if (op.kind == Kind::kLoss) {
      for (const BucketOp& expected : schedule_.Expected()) queue_->Expect(KeyOf(expected));
    }
    queue_->Post(KeyOf(op), schedule_.Priority(op), [this, op] { return Perform(op); });
  }
  return absl::OkStatus();
}

absl::Status ThreadFlow::WaitForWeights(int bucket) {
  if (queue_ == nullptr) return absl::OkStatus();
  return Waited("weights", [&] {
    for (int c = 0; c < table_.buckets[bucket].chunks; ++c) {
      CADRE_RETURN_IF_ERROR(queue_->Wait(KeyOf({Kind::kGather, bucket, c})));
    }
    // They were written by gathers and by the back end of the queue's thread.
    if (changed_[bucket]) kernels_.WeightsChanged(parameters_.weights(bucket));
    changed_[bucket] = false;
    return absl::OkStatus();
  });
}

void ThreadFlow::AddLoss(std::span<const double> sums, int64_t counted) {
  mine_.loss += sums[0];
  mine_.correct += sums[1];
  mine_.samples += counted;
}

absl::StatusOr<LossPart> ThreadFlow::AwaitLoss() {
  if (queue_ != nullptr) {
    CADRE_RETURN_IF_ERROR(Waited("loss", [this] { return queue_->Wait(KeyOf({Kind::kLoss})); }));
  }
  return group_;
}

void ThreadFlow::Fail(const absl::Status& reason) {
  if (queue_ != nullptr) queue_->Fail(reason);
}

void ThreadFlow::BeginStep(float rate, bool gather, int64_t labels) {
  GradientFlow::BeginStep(rate, gather, labels);
  changed_.assign(buckets(), true);
}

absl::Status ThreadFlow::Gather() {
  changed_.assign(buckets(), true);
  // Updates of a step that did not gather may still be running.
  CADRE_RETURN_IF_ERROR(AwaitOperations());
  return GradientFlow::Gather();
}

absl::Status ThreadFlow::AwaitOperations() {
  if (queue_ == nullptr) return absl::OkStatus();
  return Waited("everything", [this] { return queue_->WaitAll(); });
}

absl::Status ThreadFlow::Waited(const char* what, const std::function<absl::Status()>& wait) {
  const absl::Time start = absl::Now();
  absl::Status status = wait();
  const absl::Duration waited = absl::Now() - start;
  seconds_waited_ += absl::ToDoubleSeconds(waited);
  if (trace_ != nullptr && trace_->on() && waited >= kMinTracedWait) {
    trace_->Add({.name = absl::StrCat("wait for ", what),
                 .category = "wait",
                 .track = 0,
                 .begin_us = absl::ToUnixMicros(start),
                 .duration_us = absl::ToInt64Microseconds(waited),
                 .step = next_.number});
  }
  return status;
}

// ---- The queue's thread

absl::Status ThreadFlow::Perform(const BucketOp& op) {
  if (op.kind == Kind::kUpdateAndGather) {
    CADRE_RETURN_IF_ERROR(Execute({Kind::kUpdate, op.bucket, op.chunk}));
    return Execute({Kind::kGather, op.bucket, op.chunk});
  }
  CADRE_RETURN_IF_ERROR(Execute(op));
  return Start(schedule_.Done(op));
}

absl::StatusOr<int64_t> ThreadFlow::SumLoss() {
  constexpr int64_t kBytes = 3 * sizeof(double);
  CADRE_ASSIGN_OR_RETURN(group_, SumOverGroup(mine_, comms_.All(Transport::kBackground)));
  if (std::isfinite(group_.loss)) {
    for (SliceOptimizer& optimizer : optimizers_) optimizer.BeginUpdate();
    return kBytes;
  }
  schedule_.Stop();
  if (queue_ != nullptr) {
    for (const BucketOp& expected : schedule_.Expected()) queue_->Forget(KeyOf(expected));
  }
  return kBytes;
}

absl::StatusOr<int64_t> ThreadFlow::SumNorms() {
  norms_.Clear();
  for (int b = 0; b < buckets(); ++b) {
    optimizers_[b].AddNorms(GradientSlice(b), WeightSlice(b), norms_);
  }
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(norms_.sums()));
  return norms_.sums().size_bytes();
}

void ThreadFlow::Update(const BucketOp& op) {
  const Interval& mine = table_.buckets[op.bucket].mine[op.chunk];
  const int64_t slice = parameters_.ownership(op.bucket).slice_begin();
  optimizers_[op.bucket].UpdatePart({mine.begin - slice, mine.end - slice}, current_.rate, norms_,
                                    GradientSlice(op.bucket), WeightSlice(op.bucket));
}

}  // namespace cadre
