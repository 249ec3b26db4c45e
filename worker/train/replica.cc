#include "worker/train/replica.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status.h"
#include "spec/memory.h"

namespace cadre {
namespace {

template <typename T>
std::span<T> Slice(std::span<T> buffer, const BucketOwnership& bucket) {
  return buffer.subspan(static_cast<size_t>(bucket.slice_begin()),
                        static_cast<size_t>(bucket.slice_end() - bucket.slice_begin()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan_proto, Kernels& kernels,
                                                       Transport& transport) {
  CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
  ParameterIndex index = ParameterIndex::FromGraph(graph);
  CADRE_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(plan_proto, graph, index));
  if (plan.mesh.ranks() != transport.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan's mesh ", plan.mesh.ToString(),
                                                   " does not have the group's ", transport.size(),
                                                   " ranks"));
  }
  return std::unique_ptr<Replica>(
      new Replica(spec, std::move(graph), std::move(index), std::move(plan), kernels, transport));
}

Replica::Replica(const v1::RunSpec& spec, Graph graph, ParameterIndex index, Plan plan,
                 Kernels& kernels, Transport& transport)
    : spec_(spec),
      graph_(std::move(graph)),
      index_(std::move(index)),
      plan_(std::move(plan)),
      comms_(transport, plan_.mesh),
      parameters_(index_, OwnershipOf(plan_, index_, transport.rank()), spec.seed(),
                  spec.micro_batches() > 1),
      network_(std::make_unique<Network>(graph_, index_, plan_, spec.seed(), kernels, parameters_,
                                         comms_)),
      norms_(spec.optimizer(), static_cast<int>(index_.parameters().size())) {
  // Slices are updated beside the network's computing, unless the rank is alone.
  if (transport.size() > 1) update_kernels_ = kernels.OneThread();
  TakeSlices(update_kernels_ != nullptr ? *update_kernels_ : kernels);
  flow_ = std::make_unique<BucketFlow>(plan_, index_, parameters_, optimizers_, norms_, comms_,
                                       transport, spec.cluster().overlap() != v1::OFF);
  network_->set_listener(flow_.get());
  for (const int64_t samples : MicroBatchSizes(spec_)) {
    network_->Prepare(samples, /*training=*/true);
  }
}

void Replica::TakeSlices(Kernels& kernels) {
  const std::vector<float> momenta = StatisticMomenta(graph_, index_);
  for (int b = 0; b < parameters_.buckets(); ++b) {
    optimizers_.emplace_back(kernels, spec_.optimizer(), index_, momenta, parameters_.ownership(b));
  }
  owned_ = OwnedIn(
      [this](int b) { return Slice(parameters_.weights(b), parameters_.ownership(b)).data(); });
}

std::vector<OwnedSpan> Replica::OwnedIn(const std::function<float*(int bucket)>& slice) const {
  std::vector<OwnedSpan> spans;
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& bucket = parameters_.ownership(b);
    float* const values = slice(b);
    for (const OwnedPiece& piece : bucket.owned) {
      spans.push_back(
          {piece.flat.begin, piece.flat.end, values + (piece.offset - bucket.slice_begin())});
    }
  }
  std::sort(spans.begin(), spans.end(),
            [](const OwnedSpan& a, const OwnedSpan& b) { return a.begin < b.begin; });
  return spans;
}

std::vector<OwnedSpan> Replica::OwnedState(int i) {
  return OwnedIn([this, i](int b) { return optimizers_[static_cast<size_t>(b)].state(i).data(); });
}

void Replica::set_updates(int64_t updates) {
  for (SliceOptimizer& optimizer : optimizers_) optimizer.set_updates(updates);
}

absl::StatusOr<LossPart> Replica::Step(std::span<const BatchView> batches, float rate,
                                       bool gather) {
  flow_->BeginStep(rate, gather);
  absl::Status passed = Passes(batches);
  if (passed.ok()) passed = flow_->EndStep();
  if (!passed.ok()) {
    flow_->Fail(passed);
    return passed;
  }
  CADRE_ASSIGN_OR_RETURN(const LossPart group, flow_->AwaitLoss());
  CADRE_RETURN_IF_ERROR(CheckFinite(group, batches));
  return group;
}

absl::Status Replica::Passes(std::span<const BatchView> batches) {
  int64_t samples = 0;
  for (const BatchView& batch : batches) samples += batch.samples;
  const auto labels = static_cast<float>(samples * graph_.labels_per_sample());
  for (size_t i = 0; i < batches.size(); ++i) {
    const bool last = i + 1 == batches.size();
    if (last) flow_->BeginLastPass();
    const double share = static_cast<double>(batches[i].samples) /
                         static_cast<double>(std::max<int64_t>(1, samples));
    CADRE_RETURN_IF_ERROR(network_->ForwardBackward(batches[i], 1.0F / labels, share).status());
    if (!last) flow_->EndPass();
  }
  return absl::OkStatus();
}

// Every rank decides by the same sum, so all of them look for the culprit together.
absl::Status Replica::CheckFinite(const LossPart& group, std::span<const BatchView> batches) {
  if (std::isfinite(group.loss)) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(flow_->Settle());
  const auto none = static_cast<uint64_t>(graph_.size());
  uint64_t mine = none;
  for (const BatchView& batch : batches) {
    CADRE_ASSIGN_OR_RETURN(const int layer, network_->FirstNotFinite(batch));
    mine = std::min(mine, static_cast<uint64_t>(layer));
  }
  CADRE_ASSIGN_OR_RETURN(const Least least, LeastOf(mine));
  if (least.value == none) {
    return absl::OutOfRangeError(
        absl::StrCat("the loss is ", group.loss,
                     "; every layer's output is finite, so it is the loss itself that overflowed"));
  }
  return absl::OutOfRangeError(absl::StrCat(
      "the loss is ", group.loss, "; the first output that is not finite is that of layer '",
      graph_[static_cast<int>(least.value)].name, "' on rank ", least.rank));
}

absl::Status Replica::CheckWeights() {
  CADRE_RETURN_IF_ERROR(flow_->Settle());
  const auto none = static_cast<uint64_t>(index_.size());
  uint64_t mine = none;
  for (const OwnedSpan& span : owned_) {
    const float* const end = span.values + (span.end - span.begin);
    const float* const bad = std::find_if(static_cast<const float*>(span.values), end,
                                          [](float value) { return !std::isfinite(value); });
    if (bad == end) continue;
    mine = static_cast<uint64_t>(span.begin + (bad - span.values));
    break;
  }
  CADRE_ASSIGN_OR_RETURN(const Least least, LeastOf(mine));
  if (least.value == none) return absl::OkStatus();
  const auto position = static_cast<int64_t>(least.value);
  const auto tensor = static_cast<int>(index_.RangesOf(position, position + 1)[0].tensor());
  return absl::OutOfRangeError(absl::StrCat("the update made '", index_[tensor].name,
                                            "' no finite number, first on rank ", least.rank));
}

absl::StatusOr<Replica::Least> Replica::LeastOf(uint64_t mine) {
  std::vector<uint64_t> all(static_cast<size_t>(comms_.mesh().ranks()), 0);
  all[static_cast<size_t>(comms_.rank())] = mine;
  CADRE_RETURN_IF_ERROR(comms_.All().AllReduceSum(std::span<uint64_t>(all)));
  const auto least = std::min_element(all.begin(), all.end());
  return Least{*least, static_cast<int>(least - all.begin())};
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
  CADRE_RETURN_IF_ERROR(flow_->Settle());
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
      entry.set_elements(static_cast<uint64_t>(local.size()));
      entry.set_of(static_cast<uint64_t>(parameter.shape.elements()));
    }
    for (const OwnedPiece& piece : bucket.owned) {
      v1::HeldParameter& entry = held[static_cast<size_t>(piece.parameter)];
      entry.set_owned(entry.owned() + static_cast<uint64_t>(piece.flat.size()));
    }
  }
  return held;
}

v1::MemoryUse Replica::Memory() const {
  v1::MemoryUse use;
  use.set_weights(static_cast<uint64_t>(parameters_.weight_bytes()));
  use.set_gradients(static_cast<uint64_t>(parameters_.gradient_bytes()));
  uint64_t state = 0;
  for (const SliceOptimizer& optimizer : optimizers_) {
    state += static_cast<uint64_t>(optimizer.state_bytes());
  }
  use.set_optimizer(state);
  use.set_activations(static_cast<uint64_t>(network_->activation_bytes()));
  use.set_buffers(static_cast<uint64_t>(network_->buffer_bytes()));
  return use;
}

v1::MemoryUse Replica::PlannedMemory() const {
  return cadre::PlannedMemory(spec_, graph_, index_, plan_, comms_.rank());
}

}  // namespace cadre
