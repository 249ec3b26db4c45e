#include "worker/train/gradient_flow.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "plan/plan_collectives.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

using Kind = BucketOp::Kind;

// `whole`: the bucket is one chunk.
BucketTable::Bucket MakeBucket(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                               const BucketOwnership& ownership, int rank, bool whole) {
  BucketTable::Bucket made;
  made.held = plan.mesh.IsAt(rank, bucket.at);
  made.first_layer = index[bucket.parameters.front()].layer;
  made.owner_axes = bucket.owner_axes();
  made.chunks = whole ? 1 : ChunksOf(plan, index, bucket);
  const int replicas = plan.mesh.Size(bucket.replica_axes);
  const int64_t owners = std::ssize(ownership.borders) - 1;
  for (int c = 0; c < made.chunks; ++c) {
    std::vector<Interval> gather;
    for (int64_t i = 0; i < owners; ++i) {
      const int64_t begin = ownership.borders[i];
      const int64_t size = ownership.borders[i + 1] - begin;
      gather.push_back(
          {begin + PartBegin(size, c, made.chunks), begin + PartBegin(size, c + 1, made.chunks)});
    }
    std::vector<Interval> reduce;
    for (int64_t i = ownership.own_slice % replicas; i < owners; i += replicas) {
      reduce.push_back(gather[i]);
    }
    made.mine.push_back(gather[ownership.own_slice]);
    made.gather.push_back(std::move(gather));
    made.reduce.push_back(std::move(reduce));
  }
  return made;
}

// `whole`: every bucket is one chunk. Requires: `parameters` belong to `plan` and `index`.
BucketTable MakeBucketTable(const Plan& plan, const ParameterIndex& index,
                            const ParameterStore& parameters, int rank, bool whole) {
  BucketTable table;
  table.of_layer.resize(plan.layers.size());
  for (int b = 0; b < parameters.buckets(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    table.buckets.push_back(MakeBucket(plan, index, bucket, parameters.ownership(b), rank, whole));
    if (!table.buckets.back().held) continue;
    for (const int p : bucket.parameters) {
      std::vector<int>& of_layer = table.of_layer[index[p].layer];
      if (of_layer.empty() || of_layer.back() != b) of_layer.push_back(b);
    }
  }
  return table;
}

std::span<std::byte> Bytes(std::span<float> values) { return std::as_writable_bytes(values); }

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kLoss:
      return "loss";
    case Kind::kReduce:
      return "reduce-scatter";
    case Kind::kNorms:
      return "norms";
    case Kind::kUpdate:
      return "update";
    case Kind::kGather:
    case Kind::kUpdateAndGather:
      return "all-gather";
  }
  return "";
}

}  // namespace

GradientFlow::GradientFlow(const Context& context, bool on_stream)
    : plan_(context.plan),
      parameters_(context.parameters),
      optimizers_(context.optimizers),
      norms_(context.norms),
      comms_(context.comms),
      kernels_(context.kernels),
      device_(context.kernels.device()),
      table_(MakeBucketTable(context.plan, context.index, context.parameters, context.comms.rank(),
                             on_stream)),
      schedule_(table_, {.overlap = context.overlap,
                         .norms = !context.norms.sums().empty(),
                         .lazy_gathers = on_stream}) {
  for (int b = 0; b < buckets(); ++b) {
    for (const LocalParameter& local : parameters_.ownership(b).parameters) {
      if (!IsStatistic(context.index[local.parameter].role)) continue;
      statistics_.push_back({b, {local.offset, local.offset + local.size()}});
    }
  }
}

// ---- The rank's own thread

void GradientFlow::BeginStep(float rate, bool gather, int64_t labels) {
  next_ = {step_, rate, labels};
  schedule_.BeginStep(gather);
}

absl::Status GradientFlow::BeforeForward(int layer) {
  for (const int b : table_.of_layer[layer]) CADRE_RETURN_IF_ERROR(WaitForWeights(b));
  return absl::OkStatus();
}

absl::Status GradientFlow::AfterLoss(std::span<const double> sums, int64_t counted) {
  if (schedule_.first_pass()) {
    for (int b = 0; b < buckets(); ++b) {
      if (!table_.buckets[b].held) CADRE_RETURN_IF_ERROR(WaitForWeights(b));
    }
    ResetLoss();
    for (int b = 0; b < buckets(); ++b) {
      const std::span<float> total = parameters_.sums(b);
      if (!total.empty()) device_.Zero(total.data(), total.size_bytes());
    }
  }
  AccumulateStatistics();
  if (counted > 0) AddLoss(sums, counted);
  schedule_.AfterLoss();
  return absl::OkStatus();
}

absl::Status GradientFlow::AfterForwards() {
  // Forward has waited for all weights, so no operation of the step before is executing.
  current_ = next_;
  return Start(schedule_.AfterForwards());
}

absl::Status GradientFlow::EndPass() {
  if (!schedule_.last_backward()) {
    for (int b = 0; b < buckets(); ++b) Accumulate(b);
    return absl::OkStatus();
  }
  CADRE_RETURN_IF_ERROR(Start(schedule_.EndPass()));
  return schedule_.overlap() ? absl::OkStatus() : WaitForStep();
}

absl::Status GradientFlow::Gather() {
  CADRE_RETURN_IF_ERROR(Start(schedule_.Gather()));
  return schedule_.overlap() ? absl::OkStatus() : WaitForStep();
}

void GradientFlow::Accumulate(int bucket) {
  const std::span<float> sums = parameters_.sums(bucket);
  if (!sums.empty()) kernels_.pointwise().Add(parameters_.gradients(bucket), sums);
}

void GradientFlow::AccumulateStatistics() {
  for (const auto& [bucket, elements] : statistics_) {
    const std::span<float> sums = parameters_.sums(bucket);
    if (sums.empty()) continue;
    const std::span<float> added =
        parameters_.gradients(bucket).subspan(elements.begin, elements.size());
    kernels_.pointwise().Add(added, sums.subspan(elements.begin, elements.size()));
    device_.Zero(added.data(), added.size_bytes());
  }
}

// ---- The executor

absl::Status GradientFlow::Execute(const BucketOp& op) {
  if (!watched()) return Run(op).status();
  device_.Synchronize().IgnoreError();
  const absl::Time begin = absl::Now();
  CADRE_ASSIGN_OR_RETURN(const int64_t bytes, Run(op));
  device_.Synchronize().IgnoreError();
  Report(op, begin, bytes);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> GradientFlow::Run(const BucketOp& op) {
  if (op.kind == Kind::kLoss) return SumLoss();
  if (op.kind == Kind::kNorms) return SumNorms();
  if (op.kind == Kind::kUpdate) {
    Update(op);
    return -1;
  }
  const BucketTable::Bucket& bucket = table_.buckets[op.bucket];
  if (!bucket.held) return 0;
  const Bucket& planned = plan_.buckets[op.bucket];
  const bool reduces = op.kind == Kind::kReduce;
  Communicator& comm =
      comms_.Over(reduces ? planned.axes : bucket.owner_axes, Transport::kBackground);
  const uint64_t sent = comm.bytes_sent();
  CADRE_RETURN_IF_ERROR(
      reduces ? comm.ReduceScatter(planned.algorithm, DType::kFloat32, Bytes(Gradients(op.bucket)),
                                   bucket.reduce[op.chunk])
              : comm.AllGather(planned.algorithm, DType::kFloat32,
                               Bytes(parameters_.weights(op.bucket)), bucket.gather[op.chunk]));
  return comm.bytes_sent() - sent;
}

void GradientFlow::Report(const BucketOp& op, absl::Time begin, int64_t bytes) {
  const absl::Duration took = absl::Now() - begin;
  if (observer_ != nullptr) observer_->Done(op, current_.number, absl::ToDoubleSeconds(took));
  if (trace_ == nullptr || !trace_->on()) return;
  std::string name = NameOf(op.kind);
  if (op.bucket >= 0) absl::StrAppend(&name, " bucket ", op.bucket, " part ", op.chunk);
  trace_->Add({.name = std::move(name),
               .category = op.kind == Kind::kUpdate ? "update" : "collective",
               .track = 1,
               .begin_us = absl::ToUnixMicros(begin),
               .duration_us = absl::ToInt64Microseconds(took),
               .bytes = bytes,
               .step = current_.number});
}

std::span<float> GradientFlow::Gradients(int bucket) {
  const std::span<float> sums = parameters_.sums(bucket);
  return sums.empty() ? parameters_.gradients(bucket) : sums;
}

std::span<float> GradientFlow::GradientSlice(int bucket) {
  return parameters_.ownership(bucket).SliceOf(Gradients(bucket));
}

std::span<float> GradientFlow::WeightSlice(int bucket) {
  return parameters_.ownership(bucket).SliceOf(parameters_.weights(bucket));
}

}  // namespace cadre
