#include "worker/train/stream_flow.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

using Part = FlowObserver::Part;

std::span<std::byte> Bytes(std::span<float> values) { return std::as_writable_bytes(values); }

}  // namespace

StreamFlow::StreamFlow(const Plan& plan, const ParameterIndex& index, ParameterStore& parameters,
                       std::vector<SliceOptimizer>& optimizers, StepNorms& norms,
                       const SliceMirror& mirror, MeshCommunicators& comms, Kernels& kernels,
                       bool overlap)
    : plan_(plan),
      parameters_(parameters),
      optimizers_(optimizers),
      norms_(norms),
      mirror_(mirror),
      comms_(comms),
      kernels_(kernels),
      device_(kernels.device()),
      overlap_(overlap),
      // A device has a lane of its own for communication, on which nothing urgent stands behind a
      // large bucket: forward's order is kept among the gathers as it is.
      table_(BucketTableOf(plan, index, parameters, /*whole=*/true)),
      forward_order_(static_cast<size_t>(parameters.buckets())),
      mine_(device_, 2, "loss"),
      group_(device_, 2, "loss"),
      seen_(device_, 2),
      squares_(device_, norms.sums().size(), "norms"),
      squares_seen_(device_, norms.by_tensor() ? norms.sums().size() : 0),
      ready_(static_cast<size_t>(parameters.buckets())),
      mirrored_(static_cast<size_t>(parameters.buckets())) {
  std::iota(forward_order_.begin(), forward_order_.end(), 0);
  std::stable_sort(forward_order_.begin(), forward_order_.end(),
                   [this](int a, int b) { return parts(a).first_layer < parts(b).first_layer; });
}

std::span<float> StreamFlow::Gradients(int b) {
  const std::span<float> sums = parameters_.sums(b);
  return sums.empty() ? parameters_.gradients(b) : sums;
}

std::span<float> StreamFlow::Slice(std::span<float> buffer, int b) const {
  const BucketOwnership& ownership = parameters_.ownership(b);
  return buffer.subspan(static_cast<size_t>(ownership.slice_begin()),
                        static_cast<size_t>(ownership.slice_end() - ownership.slice_begin()));
}

void StreamFlow::AfterCompute() {
  {
    const OnLane compute(device_, Lane::kCompute);
    computed_.Set(device_);
  }
  computed_.Wait(device_);
}

void StreamFlow::ClearMarks() {
  for (LaneMark* mark : {&norms_known_, &loss_taken_, &computed_, &fork_, &join_}) mark->Clear();
  for (int b = 0; b < buckets(); ++b) {
    ready(b).Clear();
    mirrored(b).Clear();
  }
}

// ---- Watchers

bool StreamFlow::watched() const {
  return observer_ != nullptr || (trace_ != nullptr && trace_->on());
}

FlowPiece StreamFlow::BeginPiece() {
  if (watched()) static_cast<void>(device_.Synchronize());
  return {trace_, observer_, step_};
}

void StreamFlow::EndPiece(const FlowPiece& piece, Part part, int64_t bytes, const char* what,
                          int b) {
  if (watched()) static_cast<void>(device_.Synchronize());
  piece.End(part, bytes, what, b);
}

// ---- The step

void StreamFlow::BeginStep(float rate, bool gather, int64_t labels) {
  rate_ = rate;
  labels_ = labels;
  loss_known_.Clear();
  progress_.gather = gather;
  progress_.first_pass = true;
  progress_.last_pass = false;
  progress_.ended = false;
  progress_.posted.assign(ready_.size(), false);
  progress_.layers_left.clear();
  for (const BucketParts& parts : table_.buckets) progress_.layers_left.push_back(parts.layers);
  const OnLane communication(device_, Lane::kCommunication);
  kernels_.SetUpdate(rate, optimizers_.empty() ? 1 : optimizers_.front().updates() + 1);
}

absl::Status StreamFlow::BeforeForward(int layer) {
  if (progress_.gathers_pending) CADRE_RETURN_IF_ERROR(EnqueueGathers());
  for (const int b : table_.of_layer[static_cast<size_t>(layer)]) ready(b).Wait(device_);
  return failed_;
}

absl::Status StreamFlow::AfterLoss(std::span<const double> sums, int64_t counted) {
  if (progress_.first_pass) {
    // Forward has waited for all weights, so of the step before only the loss may be looked at.
    loss_taken_.Wait(device_);
    device_.Zero(mine_.data(), mine_.span().size_bytes());
    for (int b = 0; b < buckets(); ++b) {
      const std::span<float> added = parameters_.sums(b);
      if (!added.empty()) device_.Zero(added.data(), added.size_bytes());
    }
  }
  progress_.first_pass = false;
  if (counted > 0) {
    kernels_.AddArrived(DType::kFloat64, std::as_writable_bytes(mine_.span()),
                        std::as_bytes(sums.first(2)));
  }
  return progress_.last_pass ? PostLoss() : absl::OkStatus();
}

absl::Status StreamFlow::PostLoss() {
  const FlowPiece piece = BeginPiece();
  const OnLane communication(device_, Lane::kCommunication);
  AfterCompute();
  device_.Copy(mine_.data(), group_.data(), group_.span().size_bytes());
  loss_taken_.Set(device_);
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(group_.span()));
  device_.CopyOutLater(group_.data(), seen_.data(), seen_.span().size_bytes());
  loss_known_.Set(device_);
  if (squares_.size() > 0) device_.Zero(squares_.data(), squares_.span().size_bytes());
  EndPiece(piece, Part::kReduce, static_cast<int64_t>(group_.span().size_bytes()), "loss");
  return absl::OkStatus();
}

void StreamFlow::EndPass() {
  for (int b = 0; b < buckets(); ++b) {
    if (!parameters_.sums(b).empty()) kernels_.Add(parameters_.gradients(b), parameters_.sums(b));
  }
}

absl::Status StreamFlow::AfterBackward(int layer) {
  if (!progress_.last_pass) return absl::OkStatus();
  for (const int b : table_.of_layer[static_cast<size_t>(layer)]) {
    if (--progress_.layers_left[static_cast<size_t>(b)] > 0 || !overlap_) continue;
    CADRE_RETURN_IF_ERROR(PostReduce(b));
  }
  return absl::OkStatus();
}

absl::Status StreamFlow::EndStep() {
  if (progress_.ended) return failed_;
  progress_.ended = true;
  for (int b = 0; b < buckets(); ++b) {
    if (!progress_.posted[static_cast<size_t>(b)]) CADRE_RETURN_IF_ERROR(PostReduce(b));
  }
  if (progress_.gather) CADRE_RETURN_IF_ERROR(Gather());
  if (!overlap_) {
    for (int b = 0; b < buckets(); ++b) ready(b).Wait(device_);
  }
  return failed_;
}

absl::StatusOr<LossPart> StreamFlow::AwaitLoss() {
  CADRE_RETURN_IF_ERROR(failed_);
  CADRE_RETURN_IF_ERROR(loss_known_.Await(device_));
  const LossPart group{.loss = seen_.data()[0],
                       .correct = static_cast<int64_t>(seen_.data()[1]),
                       .samples = labels_};
  if (std::isfinite(group.loss)) {
    for (SliceOptimizer& optimizer : optimizers_) optimizer.BeginUpdate();
  }
  return group;
}

void StreamFlow::Fail(const absl::Status& reason) {
  if (failed_.ok()) failed_ = reason;
  comms_.transport().Abort(reason);
}

absl::Status StreamFlow::Gather() {
  progress_.gathers_pending = true;
  return overlap_ ? failed_ : EnqueueGathers();
}

// Gathers that nobody has needed yet are left to the next forward: a rank may settle by itself.
absl::Status StreamFlow::Settle() {
  CADRE_RETURN_IF_ERROR(failed_);
  Enter();
  computed_.Set(device_);
  const absl::Status status = computed_.Await(device_);
  ClearMarks();
  return status;
}

// ---- Buckets

absl::Status StreamFlow::PostReduce(int b) {
  progress_.posted[static_cast<size_t>(b)] = true;
  const FlowPiece piece = BeginPiece();
  const OnLane communication(device_, Lane::kCommunication);
  AfterCompute();
  if (!parameters_.sums(b).empty()) kernels_.Add(parameters_.gradients(b), parameters_.sums(b));
  Communicator& comm = comms_.Over(bucket(b).axes, Transport::kBackground);
  const uint64_t sent = comm.bytes_sent();
  CADRE_RETURN_IF_ERROR(comm.ReduceScatter(bucket(b).algorithm, DType::kFloat32,
                                           Bytes(Gradients(b)), parts(b).reduce[0]));
  EndPiece(piece, Part::kReduce, static_cast<int64_t>(comm.bytes_sent() - sent), "reduce-scatter",
           b);
  return AfterReduce(b);
}

absl::Status StreamFlow::AfterReduce(int b) {
  if (squares_.size() == 0) {
    Update(b);
    return absl::OkStatus();
  }
  optimizer(b).AddNormsLater(Slice(Gradients(b), b), Slice(parameters_.weights(b), b),
                             squares_.span());
  const bool all =
      std::find(progress_.posted.begin(), progress_.posted.end(), false) == progress_.posted.end();
  return all ? SumNorms() : absl::OkStatus();
}

absl::Status StreamFlow::SumNorms() {
  const FlowPiece piece = BeginPiece();
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(squares_.span()));
  EndPiece(piece, Part::kReduce, static_cast<int64_t>(squares_.span().size_bytes()), "norms");
  if (norms_.by_tensor()) {
    CADRE_RETURN_IF_ERROR(FetchNorms());
    if (!std::isfinite(seen_.data()[0])) return absl::OkStatus();
  }
  for (const int b : forward_order_) Update(b);
  return absl::OkStatus();
}

absl::Status StreamFlow::FetchNorms() {
  device_.CopyOutLater(squares_.data(), squares_seen_.data(), squares_.span().size_bytes());
  norms_known_.Set(device_);
  CADRE_RETURN_IF_ERROR(norms_known_.Await(device_));
  std::copy(squares_seen_.span().begin(), squares_seen_.span().end(), norms_.sums().begin());
  return absl::OkStatus();
}

void StreamFlow::Update(int b) {
  const FlowPiece piece = BeginPiece();
  const std::span<float> gradients = Slice(Gradients(b), b);
  const std::span<float> weights = Slice(parameters_.weights(b), b);
  mirrored(b).Wait(device_);
  if (norms_.by_tensor()) {
    optimizer(b).UpdatePart(0, weights.size(), rate_, norms_, gradients, weights);
    // What Kernels::Sgd changes by the piece is not known to be a parameter.
    kernels_.WeightsChanged(weights);
  } else {
    optimizer(b).UpdateLater(
        {.loss = group_.data(), .squares = squares_.size() > 0 ? squares_.data() : nullptr},
        gradients, weights);
  }
  ready(b).Set(device_);
  EndPiece(piece, Part::kUpdate, -1, "update", b);
  if (progress_.gather) return;
  const OnLane copies(device_, Lane::kCopies);
  ready(b).Wait(device_);
  mirror_.CopyOutLater(static_cast<size_t>(b));
  mirrored(b).Set(device_);
}

absl::Status StreamFlow::EnqueueGathers() {
  progress_.gathers_pending = false;
  const OnLane communication(device_, Lane::kCommunication);
  AfterCompute();
  for (const int b : forward_order_) CADRE_RETURN_IF_ERROR(GatherBucket(b));
  return absl::OkStatus();
}

absl::Status StreamFlow::GatherBucket(int b) {
  const FlowPiece piece = BeginPiece();
  Communicator& comm = comms_.Over(parts(b).owners, Transport::kBackground);
  const std::span<float> weights = parameters_.weights(b);
  const uint64_t sent = comm.bytes_sent();
  if (comm.size() > 1) {
    CADRE_RETURN_IF_ERROR(
        comm.AllGather(bucket(b).algorithm, DType::kFloat32, Bytes(weights), parts(b).gather[0]));
    // The own slice's update has told the kernels already.
    const Piece& mine = parts(b).mine[0];
    const auto before = weights.first(static_cast<size_t>(mine.begin));
    const auto behind = weights.subspan(static_cast<size_t>(mine.end));
    if (!before.empty()) kernels_.WeightsChanged(before);
    if (!behind.empty()) kernels_.WeightsChanged(behind);
  }
  ready(b).Set(device_);
  EndPiece(piece, Part::kGather, static_cast<int64_t>(comm.bytes_sent() - sent), "all-gather", b);
  return absl::OkStatus();
}

// ---- Recordings

bool StreamFlow::can_record() const { return !watched() && !norms_.by_tensor(); }

void StreamFlow::Enter() {
  {
    const OnLane communication(device_, Lane::kCommunication);
    join_.Set(device_);
  }
  join_.Wait(device_);
  for (const LaneMark& mark : mirrored_) mark.Wait(device_);
  ClearMarks();
}

void StreamFlow::Fork() {
  fork_.Set(device_);
  const OnLane communication(device_, Lane::kCommunication);
  fork_.Wait(device_);
}

void StreamFlow::Join() { Enter(); }

void StreamFlow::Leave(bool with_loss) {
  ClearMarks();
  if (with_loss) loss_known_.Set(device_);
  fork_.Set(device_);
  const OnLane communication(device_, Lane::kCommunication);
  fork_.Wait(device_);
}

}  // namespace cadre
