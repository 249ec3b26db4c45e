#include "worker/train/stream_flow.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace cadre {

using Kind = BucketOp::Kind;

StreamFlow::StreamFlow(const Context& context, const SliceMirror& mirror)
    : GradientFlow(context, /*on_stream=*/true),
      mirror_(mirror),
      mine_(device_, 2, "loss"),
      group_(device_, 2, "loss"),
      group_on_host_(device_, 2),
      squares_(device_, norms_.sums().size(), "norms"),
      squares_on_host_(device_, norms_.by_tensor() ? norms_.sums().size() : 0),
      ready_(buckets()),
      mirrored_(buckets()) {}

// ---- The step

void StreamFlow::BeginStep(float rate, bool gather, int64_t labels) {
  GradientFlow::BeginStep(rate, gather, labels);
  current_ = next_;
  loss_known_.Clear();
  const OnStream communication(device_, Stream::kCommunication);
  kernels_.slices()->SetUpdate(rate, optimizers_.empty() ? 1 : optimizers_.front().updates() + 1);
}

absl::Status StreamFlow::Start(const BucketOps& ops) {
  if (ops.empty()) return failed_;
  const OnStream communication(device_, Stream::kCommunication);
  AfterCompute();
  for (const BucketOp& op : ops) CADRE_RETURN_IF_ERROR(Perform(op));
  return failed_;
}

absl::Status StreamFlow::Perform(const BucketOp& op) {
  const int b = op.bucket;
  if (op.kind == Kind::kReduce) Accumulate(b);
  CADRE_RETURN_IF_ERROR(Execute(op));
  if (op.kind == Kind::kReduce && squares_.size() > 0) {
    optimizers_[b].AddNormsAsync(GradientSlice(b), WeightSlice(b), squares_.span());
  }
  if (op.kind == Kind::kGather) ReportGathered(b);
  if (op.kind == Kind::kUpdate || op.kind == Kind::kGather) ready_[b].Set(device_);
  if (op.kind == Kind::kUpdate && !schedule_.gather() && mirrors_) MirrorSlice(b);
  for (const BucketOp& next : schedule_.Done(op)) CADRE_RETURN_IF_ERROR(Perform(next));
  return absl::OkStatus();
}

absl::Status StreamFlow::WaitForWeights(int bucket) {
  ready_[bucket].Wait(device_);
  return failed_;
}

absl::Status StreamFlow::WaitForStep() {
  for (const EventMark& ready : ready_) ready.Wait(device_);
  return failed_;
}

void StreamFlow::ResetLoss() {
  // Forward has waited for all weights, so only the loss of the step before may still be in use.
  loss_taken_.Wait(device_);
  device_.Zero(mine_.data(), mine_.span().size_bytes());
}

void StreamFlow::AddLoss(std::span<const double> sums, int64_t /*counted*/) {
  kernels_.memory().AccumulateReceived(DType::kFloat64, std::as_writable_bytes(mine_.span()),
                                       std::as_bytes(sums.first(2)));
}

absl::StatusOr<LossPart> StreamFlow::AwaitLoss() {
  CADRE_RETURN_IF_ERROR(failed_);
  CADRE_RETURN_IF_ERROR(loss_known_.Await(device_));
  const std::span<const double> sums = group_on_host_.span();
  LossPart group{.loss = sums[0], .samples = current_.labels};
  group.correct = sums[1];
  if (std::isfinite(group.loss)) {
    for (SliceOptimizer& optimizer : optimizers_) optimizer.BeginUpdate();
  }
  return group;
}

void StreamFlow::Fail(const absl::Status& reason) {
  if (failed_.ok()) failed_ = reason;
  comms_.transport().Abort(reason);
}

// Pending gathers are left to the next forward, because this wait is not a collective.
absl::Status StreamFlow::AwaitOperations() {
  CADRE_RETURN_IF_ERROR(failed_);
  Enter();
  computed_.Set(device_);
  const absl::Status status = computed_.Await(device_);
  ClearMarks();
  return status;
}

// ---- Operations, on the communication stream

absl::StatusOr<int64_t> StreamFlow::SumLoss() {
  device_.Copy(mine_.data(), group_.data(), group_.span().size_bytes());
  loss_taken_.Set(device_);
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(group_.span()));
  device_.CopyToHostAsync(group_.data(), group_on_host_.data(), group_.span().size_bytes());
  loss_known_.Set(device_);
  if (squares_.size() > 0) device_.Zero(squares_.data(), squares_.span().size_bytes());
  return group_.span().size_bytes();
}

absl::StatusOr<int64_t> StreamFlow::SumNorms() {
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(squares_.span()));
  if (norms_.by_tensor()) CADRE_RETURN_IF_ERROR(FetchNorms());
  return squares_.span().size_bytes();
}

absl::Status StreamFlow::FetchNorms() {
  device_.CopyToHostAsync(squares_.data(), squares_on_host_.data(), squares_.span().size_bytes());
  norms_known_.Set(device_);
  CADRE_RETURN_IF_ERROR(norms_known_.Await(device_));
  std::copy(squares_on_host_.span().begin(), squares_on_host_.span().end(), norms_.sums().begin());
  // The loss was copied before the norms, so it is on the host, too.
  if (!std::isfinite(group_on_host_.data()[0])) schedule_.Stop();
  return absl::OkStatus();
}

void StreamFlow::Update(const BucketOp& op) {
  const int b = op.bucket;
  const std::span<float> weights = WeightSlice(b);
  mirrored_[b].Wait(device_);
  if (norms_.by_tensor()) {
    optimizers_[b].UpdatePart({0, std::ssize(weights)}, current_.rate, norms_, GradientSlice(b),
                              weights);
    // These kernels work on any memory, so the back end is informed that weights have changed.
    kernels_.WeightsChanged(weights);
  } else {
    optimizers_[b].UpdateAsync(
        {.loss = group_.data(), .squares = squares_.size() > 0 ? squares_.data() : nullptr},
        GradientSlice(b), weights);
  }
}

void StreamFlow::MirrorSlice(int bucket) {
  const OnStream copies(device_, Stream::kCopies);
  ready_[bucket].Wait(device_);
  mirror_.CopyToHostAsync(bucket);
  mirrored_[bucket].Set(device_);
}

void StreamFlow::ReportGathered(int bucket) {
  const std::span<float> weights = parameters_.weights(bucket);
  // The owned interval was reported by its update.
  const Interval& mine = table_.buckets[bucket].mine[0];
  for (const std::span<float> part : {weights.first(mine.begin), weights.subspan(mine.end)}) {
    if (!part.empty()) kernels_.WeightsChanged(part);
  }
}

void StreamFlow::AfterCompute() {
  {
    const OnStream compute(device_, Stream::kCompute);
    computed_.Set(device_);
  }
  computed_.Wait(device_);
}

void StreamFlow::ClearMarks() {
  for (EventMark* mark : {&norms_known_, &loss_taken_, &computed_, &fork_, &join_}) mark->Clear();
  for (EventMark& mark : ready_) mark.Clear();
  for (EventMark& mark : mirrored_) mark.Clear();
}

// ---- Recordings

void StreamFlow::Enter() {
  {
    const OnStream communication(device_, Stream::kCommunication);
    join_.Set(device_);
  }
  join_.Wait(device_);
  for (const EventMark& mark : mirrored_) mark.Wait(device_);
  ClearMarks();
}

void StreamFlow::Fork() {
  fork_.Set(device_);
  const OnStream communication(device_, Stream::kCommunication);
  fork_.Wait(device_);
}

void StreamFlow::Leave(bool with_loss) {
  ClearMarks();
  if (with_loss) loss_known_.Set(device_);
  Fork();
}

}  // namespace cadre
