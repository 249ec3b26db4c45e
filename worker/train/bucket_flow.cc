#include "worker/train/bucket_flow.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

// Shorter waits are no waits, only calls.
constexpr absl::Duration kShortestWait = absl::Microseconds(5);

using Part = FlowObserver::Part;

std::span<std::byte> Bytes(std::span<float> values) { return std::as_writable_bytes(values); }

}  // namespace

BucketFlow::BucketFlow(const Plan& plan, const ParameterIndex& index, ParameterStore& parameters,
                       std::vector<SliceOptimizer>& optimizers, StepNorms& norms,
                       MeshCommunicators& comms, Transport& transport, bool overlap)
    : plan_(plan),
      parameters_(parameters),
      optimizers_(optimizers),
      norms_(norms),
      comms_(comms),
      overlap_(overlap),
      table_(BucketTableOf(plan, index, parameters, /*whole=*/false)) {
  if (transport.size() > 1) queue_ = std::make_unique<CollectiveQueue>(transport);
}

uint64_t BucketFlow::Key(Phase phase, int bucket, int chunk) {
  return static_cast<uint64_t>(phase) << 56 | static_cast<uint64_t>(bucket) << 32 |
         static_cast<uint64_t>(chunk);
}

// By the layer that waits; what ends the wait before what only brings the end nearer.
int64_t BucketFlow::Priority(Phase phase, int bucket) const {
  if (phase == Phase::kLoss || phase == Phase::kNorms) return -1;
  return int64_t{2} * parts(bucket).first_layer + (phase == Phase::kGather ? 0 : 1);
}

absl::Status BucketFlow::ForChunks(const std::function<absl::Status(int bucket, int chunk)>& call) {
  for (int b = 0; b < buckets(); ++b) {
    for (int c = 0; c < parts(b).chunks; ++c) CADRE_RETURN_IF_ERROR(call(b, c));
  }
  return absl::OkStatus();
}

absl::Status BucketFlow::Post(Phase phase, int bucket, int chunk,
                              std::function<absl::Status()> work) {
  if (queue_ == nullptr) return work();
  queue_->Post(Key(phase, bucket, chunk), Priority(phase, bucket), std::move(work));
  return absl::OkStatus();
}

void BucketFlow::Expect(Phase phase, int bucket, int chunk) {
  if (queue_ != nullptr) queue_->Expect(Key(phase, bucket, chunk));
}

void BucketFlow::Forget(Phase phase, int bucket, int chunk) {
  if (queue_ != nullptr) queue_->Forget(Key(phase, bucket, chunk));
}

std::span<float> BucketFlow::Gradients(int bucket) {
  const std::span<float> sums = parameters_.sums(bucket);
  return sums.empty() ? parameters_.gradients(bucket) : sums;
}

template <typename T>
std::span<T> BucketFlow::Slice(std::span<T> buffer, int bucket) const {
  const BucketOwnership& ownership = parameters_.ownership(bucket);
  return buffer.subspan(static_cast<size_t>(ownership.slice_begin()),
                        static_cast<size_t>(ownership.slice_end() - ownership.slice_begin()));
}

// ---- The rank's own thread

void BucketFlow::BeginStep(float rate, bool gather, int64_t /*labels*/) {
  asked_ = {rate, gather, step_};
  first_pass_ = true;
  last_pass_ = false;
  posted_.assign(table_.buckets.size(), false);
  layers_left_.clear();
  for (const BucketParts& parts : table_.buckets) layers_left_.push_back(parts.layers);
}

absl::Status BucketFlow::BeforeForward(int layer) {
  if (queue_ == nullptr) return absl::OkStatus();
  const std::vector<int>& needed = table_.of_layer[static_cast<size_t>(layer)];
  return Waited("weights", [&] {
    for (const int b : needed) {
      for (int c = 0; c < parts(b).chunks; ++c) {
        CADRE_RETURN_IF_ERROR(queue_->Wait(Key(Phase::kGather, b, c)));
      }
    }
    return absl::OkStatus();
  });
}

// Forward has waited for all weights, so nothing of the step before is under way any more.
absl::Status BucketFlow::AfterLoss(std::span<const double> sums, int64_t counted) {
  if (first_pass_) {
    mine_ = LossPart();
    for (int b = 0; b < buckets(); ++b) {
      const std::span<float> added = parameters_.sums(b);
      std::fill(added.begin(), added.end(), 0.0F);
    }
  }
  first_pass_ = false;
  if (counted > 0) {
    mine_.loss += sums[0];
    mine_.correct += static_cast<int64_t>(sums[1]);
    mine_.samples += counted;
  }
  return last_pass_ ? PostLoss() : absl::OkStatus();
}

absl::Status BucketFlow::PostLoss() {
  order_ = asked_;
  chunks_to_reduce_ = 0;
  for (const BucketParts& parts : table_.buckets) chunks_to_reduce_ += parts.chunks;
  if (order_.gather) ExpectGathers();
  if (!norms_.sums().empty()) Expect(Phase::kNorms);
  return Post(Phase::kLoss, 0, 0, [this] { return SumLoss(); });
}

void BucketFlow::EndPass() {
  for (int b = 0; b < buckets(); ++b) AddUp(b);
}

void BucketFlow::AddUp(int bucket) {
  const std::span<float> sums = parameters_.sums(bucket);
  const std::span<const float> gradients = parameters_.gradients(bucket);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += gradients[i];
}

absl::Status BucketFlow::AfterBackward(int layer) {
  if (!last_pass_) return absl::OkStatus();
  for (const int b : table_.of_layer[static_cast<size_t>(layer)]) {
    if (--layers_left_[static_cast<size_t>(b)] > 0 || !overlap_) continue;
    CADRE_RETURN_IF_ERROR(PostReduce(b));
  }
  return absl::OkStatus();
}

absl::Status BucketFlow::EndStep() {
  for (int b = 0; b < buckets(); ++b) {
    if (!posted_[static_cast<size_t>(b)]) CADRE_RETURN_IF_ERROR(PostReduce(b));
  }
  return overlap_ ? absl::OkStatus() : Settle();
}

absl::StatusOr<LossPart> BucketFlow::AwaitLoss() {
  if (queue_ != nullptr) {
    CADRE_RETURN_IF_ERROR(Waited("loss", [this] { return queue_->Wait(Key(Phase::kLoss)); }));
  }
  return group_;
}

void BucketFlow::Fail(const absl::Status& reason) {
  if (queue_ != nullptr) queue_->Fail(reason);
}

absl::Status BucketFlow::Gather() {
  CADRE_RETURN_IF_ERROR(Settle());
  ExpectGathers();
  CADRE_RETURN_IF_ERROR(ForChunks([this](int b, int c) { return PostGather(b, c); }));
  return overlap_ ? absl::OkStatus() : Settle();
}

absl::Status BucketFlow::Settle() {
  if (queue_ == nullptr) return absl::OkStatus();
  return Waited("everything", [this] { return queue_->WaitAll(); });
}

absl::Status BucketFlow::Waited(const char* for_what, const std::function<absl::Status()>& wait) {
  const absl::Time start = absl::Now();
  absl::Status status = wait();
  const absl::Duration waited = absl::Now() - start;
  seconds_waited_ += absl::ToDoubleSeconds(waited);
  if (trace_ != nullptr && trace_->on() && waited >= kShortestWait) {
    trace_->Add({.name = absl::StrCat("wait for ", for_what),
                 .category = "wait",
                 .lane = 0,
                 .begin_us = absl::ToUnixMicros(start),
                 .duration_us = absl::ToInt64Microseconds(waited),
                 .step = step_});
  }
  return status;
}

absl::Status BucketFlow::PostReduce(int b) {
  posted_[static_cast<size_t>(b)] = true;
  AddUp(b);
  for (int c = 0; c < parts(b).chunks; ++c) {
    CADRE_RETURN_IF_ERROR(Post(Phase::kReduce, b, c, [this, b, c] { return Reduce(b, c); }));
  }
  return absl::OkStatus();
}

void BucketFlow::ExpectGathers() {
  for (int b = 0; b < buckets(); ++b) {
    for (int c = 0; c < parts(b).chunks; ++c) Expect(Phase::kGather, b, c);
  }
}

// ---- The queue's thread

absl::Status BucketFlow::SumLoss() {
  const FlowPiece piece = BeginPiece();
  double sums[] = {mine_.loss, static_cast<double>(mine_.correct),
                   static_cast<double>(mine_.samples)};
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(std::span<double>(sums)));
  group_ = {sums[0], static_cast<int64_t>(sums[1]), static_cast<int64_t>(sums[2])};
  finite_ = std::isfinite(group_.loss);
  if (finite_) {
    for (SliceOptimizer& optimizer : optimizers_) optimizer.BeginUpdate();
  } else {
    ForgetGathers();
  }
  piece.End(Part::kReduce, sizeof sums, "loss");
  return absl::OkStatus();
}

absl::Status BucketFlow::Reduce(int b, int c) {
  const FlowPiece piece = BeginPiece();
  const std::vector<Piece>& pieces = parts(b).reduce[static_cast<size_t>(c)];
  Communicator& comm = comms_.Over(bucket(b).axes, Transport::kBackground);
  const uint64_t sent = comm.bytes_sent();
  CADRE_RETURN_IF_ERROR(
      comm.ReduceScatter(bucket(b).algorithm, DType::kFloat32, Bytes(Gradients(b)), pieces));
  piece.End(Part::kReduce, static_cast<int64_t>(comm.bytes_sent() - sent), "reduce-scatter", b, c);
  return AfterReduce(b, c);
}

absl::Status BucketFlow::AfterReduce(int b, int c) {
  const bool last = --chunks_to_reduce_ == 0;
  if (!finite_) return absl::OkStatus();
  if (norms_.sums().empty()) {
    Update(b, c);
    return order_.gather ? PostGather(b, c) : absl::OkStatus();
  }
  return last ? Post(Phase::kNorms, 0, 0, [this] { return SumNorms(); }) : absl::OkStatus();
}

absl::Status BucketFlow::SumNorms() {
  const FlowPiece piece = BeginPiece();
  norms_.Clear();
  for (int b = 0; b < buckets(); ++b) {
    optimizer(b).AddNorms(Slice<float>(Gradients(b), b), Slice<float>(parameters_.weights(b), b),
                          norms_);
  }
  CADRE_RETURN_IF_ERROR(comms_.All(Transport::kBackground).AllReduceSum(norms_.sums()));
  piece.End(Part::kReduce, static_cast<int64_t>(norms_.sums().size() * sizeof(double)), "norms");
  return ForChunks([this](int b, int c) {
    if (order_.gather) return PostGather(b, c, /*update_first=*/true);
    Update(b, c);
    return absl::OkStatus();
  });
}

void BucketFlow::Update(int b, int c) {
  const FlowPiece piece = BeginPiece();
  const Piece& mine = parts(b).mine[static_cast<size_t>(c)];
  const int64_t slice = parameters_.ownership(b).slice_begin();
  optimizer(b).UpdatePart(static_cast<size_t>(mine.begin - slice),
                          static_cast<size_t>(mine.end - slice), order_.rate, norms_,
                          Slice<float>(Gradients(b), b), Slice<float>(parameters_.weights(b), b));
  piece.End(Part::kUpdate, -1, "update", b, c);
}

absl::Status BucketFlow::PostGather(int b, int c, bool update_first) {
  return Post(Phase::kGather, b, c, [=, this] { return GatherChunk(b, c, update_first); });
}

absl::Status BucketFlow::GatherChunk(int b, int c, bool update_first) {
  if (update_first) Update(b, c);
  const FlowPiece piece = BeginPiece();
  Communicator& comm = comms_.Over(parts(b).owners, Transport::kBackground);
  const uint64_t sent = comm.bytes_sent();
  CADRE_RETURN_IF_ERROR(comm.AllGather(bucket(b).algorithm, DType::kFloat32,
                                       Bytes(parameters_.weights(b)),
                                       parts(b).gather[static_cast<size_t>(c)]));
  piece.End(Part::kGather, static_cast<int64_t>(comm.bytes_sent() - sent), "all-gather", b, c);
  return absl::OkStatus();
}

void BucketFlow::ForgetGathers() {
  for (int b = 0; b < buckets(); ++b) {
    for (int c = 0; c < parts(b).chunks; ++c) Forget(Phase::kGather, b, c);
  }
  Forget(Phase::kNorms);
}

}  // namespace cadre
