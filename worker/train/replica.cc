#include "worker/train/replica.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status.h"

namespace cadre {
namespace {

std::vector<SliceOptimizer::Segment> Segments(const BucketOwnership& bucket,
                                              const ParameterIndex& index) {
  std::vector<SliceOptimizer::Segment> segments;
  for (const OwnedPiece& piece : bucket.owned) {
    const int64_t begin = piece.offset - bucket.slice_begin();
    segments.push_back({begin, begin + piece.flat.size(), !index[piece.parameter].is_bias});
  }
  return segments;
}

template <typename T>
std::span<T> Slice(std::span<T> buffer, const BucketOwnership& bucket) {
  return buffer.subspan(static_cast<size_t>(bucket.slice_begin()),
                        static_cast<size_t>(bucket.slice_end() - bucket.slice_begin()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan_proto, Kernels& kernels,
                                                       Transport& transport) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  CADRE_ASSIGN_OR_RETURN(ParameterIndex index, ParameterIndex::FromModel(spec.model()));
  CADRE_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(plan_proto, index));
  CADRE_RETURN_IF_ERROR(CheckPlan(plan, graph, index));
  if (plan.mesh.ranks() != transport.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan's mesh ", plan.mesh.ToString(),
                                                   " does not have the group's ", transport.size(),
                                                   " ranks"));
  }
  std::unique_ptr<Replica> replica(
      new Replica(std::move(index), std::move(plan), spec.seed(), transport));
  CADRE_ASSIGN_OR_RETURN(replica->network_,
                         Network::Make(graph, replica->index_, replica->plan_, kernels,
                                       replica->parameters_, replica->comms_));
  replica->TakeSlices(spec.optimizer(), kernels);
  return replica;
}

Replica::Replica(ParameterIndex index, Plan plan, uint64_t seed, Transport& transport)
    : index_(std::move(index)),
      plan_(std::move(plan)),
      comms_(transport, plan_.mesh),
      parameters_(index_, OwnershipOf(plan_, index_, transport.rank()), seed) {}

void Replica::TakeSlices(const v1::Optimizer& optimizer, Kernels& kernels) {
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& bucket = parameters_.ownership(b);
    optimizers_.emplace_back(kernels, optimizer, Segments(bucket, index_));
    for (const OwnedPiece& piece : bucket.owned) {
      owned_.push_back(
          {piece.flat.begin, piece.flat.end, parameters_.weights(b).data() + piece.offset});
    }
  }
  std::sort(owned_.begin(), owned_.end(),
            [](const OwnedSpan& a, const OwnedSpan& b) { return a.begin < b.begin; });
}

absl::StatusOr<LossPart> Replica::Step(int64_t samples, std::span<const float> images,
                                       std::span<const int32_t> labels, float rate) {
  CADRE_ASSIGN_OR_RETURN(const LossPart part, network_->ForwardBackward(samples, images, labels));
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& bucket = parameters_.ownership(b);
    const std::span<float> gradients = parameters_.gradients(b);
    Communicator& comm = comms_.Over(plan_.buckets[static_cast<size_t>(b)].axes);
    CADRE_RETURN_IF_ERROR(comm.ReduceScatterSum(gradients, bucket.borders));
    optimizers_[static_cast<size_t>(b)].Update(rate, Slice(gradients, bucket),
                                               Slice(parameters_.weights(b), bucket));
  }
  return part;
}

absl::Status Replica::GatherWeights() {
  for (int b = 0; b < parameters_.buckets(); ++b) {
    Communicator& comm = comms_.Over(plan_.buckets[static_cast<size_t>(b)].axes);
    CADRE_RETURN_IF_ERROR(comm.AllGather(parameters_.weights(b), parameters_.ownership(b).borders));
  }
  return absl::OkStatus();
}

uint64_t Replica::OwnedDigest() const {
  uint64_t digest = 0;
  for (const OwnedSpan& span : owned_) {
    digest += Digest({span.values, static_cast<size_t>(span.end - span.begin)},
                     static_cast<uint64_t>(span.begin));
  }
  return digest;
}

absl::StatusOr<uint64_t> Replica::GroupDigest() {
  uint64_t digest[] = {OwnedDigest()};
  CADRE_RETURN_IF_ERROR(comms_.All().AllReduceSum(std::span<uint64_t>(digest)));
  return digest[0];
}

std::vector<v1::HeldParameter> Replica::Held() const {
  std::vector<v1::HeldParameter> held(index_.parameters().size());
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& bucket = parameters_.ownership(b);
    for (const LocalParameter& local : bucket.parameters) {
      const Parameter& parameter = index_[local.parameter];
      v1::HeldParameter& entry = held[static_cast<size_t>(local.parameter)];
      entry.set_parameter(parameter.name);
      entry.set_elements(static_cast<uint64_t>(local.flat.size()));
      entry.set_of(static_cast<uint64_t>(parameter.shape.elements()));
    }
    for (const OwnedPiece& piece : bucket.owned) {
      v1::HeldParameter& entry = held[static_cast<size_t>(piece.parameter)];
      entry.set_owned(entry.owned() + static_cast<uint64_t>(piece.flat.size()));
    }
  }
  return held;
}

}  // namespace cadre
