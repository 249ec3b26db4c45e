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

// An update together with its gather is known by the gather's key, for which forward waits.
uint64_t KeyOf(const BucketOp& op) {
  const Kind kind = op.kind == Kind::kUpdateAndGather ? Kind::kGather : op.kind;
  return static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(op.bucket + 1) << 32 |
         static_cast<uint64_t>(op.chunk);
}

}  // namespace

ThreadFlow::ThreadFlow(const Setting& setting, Transport& transport)
    : GradientFlow(setting,
                   MakeBucketTable(setting.plan, setting.index, setting.parameters,
                                   /*whole=*/false),
                   /*lazy_gathers=*/false) {
  if (transport.size() > 1) queue_ = std::make_unique<CollectiveQueue>(transport);
}

// ---- The rank's own thread

absl::Status ThreadFlow::Start(const BucketOps& ops) {
  for (const BucketOp& op : ops) {
    if (op.kind == Kind::kReduce && op.chunk == 0) Accumulate(op.bucket);
    // An update sends nothing, so it needs no turn among the collectives.
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

absl::Status ThreadFlow::Gather() {
  // Updates of a step that did not gather may still be running.
  CADRE_RETURN_IF_ERROR(Settle());
  return GradientFlow::Gather();
}

absl::Status ThreadFlow::Settle() {
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
  double sums[] = {mine_.loss, static_cast<double>(mine_.correct),
                   static_cast<double>(mine_.samples)};
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(std::span<double>(sums)));
  group_ = {sums[0], static_cast<int64_t>(sums[1]), static_cast<int64_t>(sums[2])};
  if (std::isfinite(group_.loss)) {
    for (SliceOptimizer& optimizer : optimizers_) optimizer.BeginUpdate();
    return sizeof sums;
  }
  schedule_.Stop();
  if (queue_ != nullptr) {
    for (const BucketOp& expected : schedule_.Expected()) queue_->Forget(KeyOf(expected));
  }
  return sizeof sums;
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
  const Piece& mine = table_.buckets[op.bucket].mine[op.chunk];
  const int64_t slice = parameters_.ownership(op.bucket).slice_begin();
  optimizers_[op.bucket].UpdatePart(mine.begin - slice, mine.end - slice, current_.rate, norms_,
                                    GradientSlice(op.bucket), WeightSlice(op.bucket));
}

}  // namespace cadre
