// The training step of one rank.
//
//   for each micro-batch   load, forward, loss, backward             Network
//                          (in the order of plan/pipeline.h)
//   for each bucket        reduce-scatter the gradients              GradientFlow
//                          (norms over the group, if required)
//                          update the owned slice                    SliceOptimizer
//                          all-gather the weights
//
// Network and GradientFlow are connected by PassListener only: the network calls the flow before it
// needs weights and when gradients are complete. The flow runs concurrently, and may still run when
// the next step begins. So Step returns when the group's loss is known, which is before the step is
// complete. Before a boundary the all-gather is omitted, because averaging follows: the trainer
// exchanges the owned slices with the aggregators and then gathers.
//
// A loss that is not finite stops the step before any weight changes. All ranks get the same sum,
// so together they run forward again to find the first layer with a non-finite output.
//
// The same code runs on the host and on devices; GradientFlow, OwnedSlices and Network hide the
// difference. On a device, a group of one rank replays both phases of a pass from captured graphs
// (step_recorder.cc).
#include "worker/train/replica.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plan/memory.h"
#include "worker/nn/allocation_label.h"
#include "worker/train/stream_flow.h"
#include "worker/train/thread_flow.h"

namespace cadre {
namespace {

Precision PrecisionOf(const v1::RunSpec& spec) {
  switch (spec.precision()) {
    case v1::RunSpec::TF32:
      return Precision::kTf32;
    case v1::RunSpec::BF16:
      return Precision::kBf16;
    default:
      return Precision::kFp32;
  }
}

v1::Cluster::Device KindOf(const Device& device) {
  return device.is_host() ? v1::Cluster::CPU : v1::Cluster::CUDA;
}

// The axes of all native collectives of the plan. Each bucket adds its own, so all ranks get the
// same list.
std::vector<std::vector<std::string>> NativeAxes(const Plan& plan) {
  std::vector<std::vector<std::string>> axes;
  for (const Bucket& bucket : plan.buckets) {
    if (bucket.algorithm != Algorithm::kNative) continue;
    axes.push_back(bucket.axes);
    axes.push_back(bucket.owner_axes());
  }
  return axes;
}

// The minimum over the ranks, and the first rank that has it. A collective.
struct Minimum {
  uint64_t value = 0;
  int rank = 0;
};
absl::StatusOr<Minimum> MinimumOf(uint64_t mine, Communicator& group) {
  std::vector<uint64_t> all(group.size(), 0);
  all[group.index()] = mine;
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(all)));
  const auto smallest = std::min_element(all.begin(), all.end());
  Minimum minimum{.value = *smallest};
  minimum.rank = smallest - all.begin();
  return minimum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan_proto, Backend& kernels,
                                                       Transport& control, Transport& data) {
  CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
  ParameterIndex index = ParameterIndex::FromGraph(graph);
  CADRE_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(plan_proto, graph, index));
  if (plan.mesh.ranks() != control.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan's mesh ", plan.mesh.ToString(),
                                                   " does not have the group's ", control.size(),
                                                   " ranks"));
  }
  CADRE_RETURN_IF_ERROR(kernels.SetPrecision(PrecisionOf(spec)));
  std::unique_ptr<Replica> replica(new Replica(spec, std::move(graph), std::move(index),
                                               std::move(plan), kernels, control, data));
  CADRE_RETURN_IF_ERROR(replica->Prepare());
  return replica;
}

Replica::Replica(const v1::RunSpec& spec, Graph graph, ParameterIndex index, Plan plan,
                 Backend& kernels, Transport& control, Transport& data)
    : spec_(spec),
      graph_(std::move(graph)),
      index_(std::move(index)),
      plan_(std::move(plan)),
      order_(PassOrderOf(spec.cluster().pipeline(), MicroBatches(spec), graph_, plan_)),
      kernels_(kernels),
      device_(kernels.device()),
      comms_(control, plan_.mesh),
      comms_of_data_(&data == &control ? nullptr
                                       : std::make_unique<MeshCommunicators>(data, plan_.mesh)),
      data_comms_(comms_of_data_ != nullptr ? *comms_of_data_ : comms_),
      parameters_(index_, OwnershipOf(plan_, index_, control.rank()), spec.seed(), kernels,
                  spec.micro_batches() > 1),
      network_(std::make_unique<Network>(graph_, index_, plan_, spec.seed(), kernels, parameters_,
                                         data_comms_)),
      norms_(spec.optimizer(), std::ssize(index_.parameters())) {
  // In groups of several ranks, a thread of the host updates slices while the network computes.
  if (data.size() > 1) update_kernels_ = kernels.OneThread();
  Backend& updating = update_kernels_ != nullptr ? *update_kernels_ : kernels;
  const std::vector<float> momenta = StatisticMomenta(graph_, index_);
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& owned = parameters_.ownership(b);
    const AllocationLabel allocation_label(device_, BucketDisplayName(index_, owned));
    optimizers_.emplace_back(updating, spec.optimizer(), index_, momenta, owned);
  }
  slices_ = std::make_unique<OwnedSlices>(kernels, parameters_, optimizers_);
  flow_ = MakeFlow(data);
  network_->set_listener(flow_.get());
}

// Enqueued work may still use the memory that is freed here.
Replica::~Replica() {
  device_.Synchronize().IgnoreError();
  for (const std::span<std::byte> memory : registered_) {
    data_comms_.transport().ForgetMemory(memory);
  }
}

std::unique_ptr<GradientFlow> Replica::MakeFlow(Transport& data) {
  const GradientFlow::Context context{.plan = plan_,
                                      .index = index_,
                                      .parameters = parameters_,
                                      .optimizers = optimizers_,
                                      .norms = norms_,
                                      .comms = data_comms_,
                                      .kernels = kernels_,
                                      .overlap = spec_.cluster().overlap() != v1::Cluster::OFF};
  if (device_.is_host()) return std::make_unique<ThreadFlow>(context, data);
  auto flow = std::make_unique<StreamFlow>(context, slices_->mirror());
  if (data.size() == 1) recorder_ = std::make_unique<StepRecorder>(device_, *flow);
  return flow;
}

absl::Status Replica::Prepare() {
  CADRE_RETURN_IF_ERROR(device_.status());
  CADRE_RETURN_IF_ERROR(data_comms_.Prepare(NativeAxes(plan_)));
  if (PlacesLayers(plan_)) {
    CADRE_RETURN_IF_ERROR(data_comms_.transport().PrepareMessages());
  }
  network_->set_in_flight(InFlight());
  for (const int64_t samples : MicroBatchSizes(spec_)) {
    CADRE_RETURN_IF_ERROR(network_->Prepare(samples, /*training=*/true));
  }
  // Evaluation may need more memory, which is allocated now and not at the first evaluation.
  if (graph_.sampled_layer() != Graph::kNoLayer) {
    CADRE_RETURN_IF_ERROR(network_->Prepare(EvaluationSamples(), /*training=*/false));
  }
  // Lack of pinned memory for the states should be reported now and not at the first checkpoint.
  const v1::Checkpoint& checkpoint = spec_.checkpoint();
  if (!checkpoint.directory().empty() || !checkpoint.from().empty()) slices_->MakeStateMirrors();
  CADRE_RETURN_IF_ERROR(device_.status());
  RegisterBuffers();
  return absl::OkStatus();
}

void Replica::RegisterBuffers() {
  Transport& data = data_comms_.transport();
  if (!data.has_native() || data.size() == 1) return;
  for (int b = 0; b < parameters_.buckets(); ++b) {
    if (plan_.buckets[b].algorithm != Algorithm::kNative) continue;
    for (const std::span<float> buffer :
         {parameters_.weights(b), parameters_.gradients(b), parameters_.sums(b)}) {
      if (buffer.empty()) continue;
      registered_.push_back(std::as_writable_bytes(buffer));
      data.RegisterMemory(registered_.back());
    }
  }
}

absl::StatusOr<LossPart> Replica::Step(std::span<const BatchView> batches, float rate,
                                       bool gather) {
  CHECK(!batches.empty());
  int64_t samples = 0;
  for (const BatchView& batch : batches) samples += batch.samples;
  slices_->set_current(false);
  flow_->BeginStep(rate, gather, samples * graph_.labels_per_sample());
  if (absl::Status passed = Passes(batches, samples); !passed.ok()) {
    flow_->Fail(passed);
    return passed;
  }
  CADRE_ASSIGN_OR_RETURN(const LossPart group, flow_->AwaitLoss());
  CADRE_RETURN_IF_ERROR(CheckFinite(group, batches));
  // Without a gather the flow has copied the slices to the mirror.
  slices_->set_current(!gather && flow_->mirrors());
  return group;
}

absl::Status Replica::Passes(std::span<const BatchView> batches, int64_t samples) {
  const int count = std::ssize(batches);
  std::optional<PassOrder> other;
  if (count != order_.micro_batches()) other.emplace(count);
  const PassOrder& order = other.has_value() ? *other : order_;
  std::vector<int64_t> sizes;
  for (const BatchView& batch : batches) sizes.push_back(batch.samples);
  network_->BeginStep(order, sizes);
  const float labels = samples * graph_.labels_per_sample();
  const double all_samples = std::max<int64_t>(1, samples);
  int loaded = -1;
  for (const Pass pass : order.OfStage(StageIn(order, plan_.mesh, comms_.rank()))) {
    const BatchView& batch = batches[pass.micro_batch];
    if (std::exchange(loaded, pass.micro_batch) != pass.micro_batch) {
      CADRE_RETURN_IF_ERROR(network_->Load(batch));
    }
    CADRE_RETURN_IF_ERROR(Play(
        pass, pass.micro_batch + 1 == count,
        {.phase = pass.backward ? StepRecorder::Phase::kBackward : StepRecorder::Phase::kForward,
         .samples = batch.samples,
         .loss_scale = 1.0F / labels,
         .share = batch.samples / all_samples,
         .memory_moves = network_->memory_moves()}));
  }
  return network_->EndStep();
}

absl::Status Replica::Play(Pass pass, bool last, const StepRecorder::Shape& shape) {
  if (pass.backward) {
    if (last) flow_->BeginLastBackward();
    return PlayPhase(shape, [&] {
      CADRE_RETURN_IF_ERROR(network_->PlayBackward(pass.micro_batch));
      return flow_->EndPass();
    });
  }
  if (last) flow_->BeginLastForward();
  return PlayPhase(shape, [&] {
    return network_->PlayForward(pass.micro_batch, shape.loss_scale, shape.share);
  });
}

absl::Status Replica::PlayPhase(const StepRecorder::Shape& shape,
                                const std::function<absl::Status()>& work) {
  // An observer is called between operations, which is not possible in a captured graph.
  const bool records = recorder_ != nullptr && recordings_ && !network_->observed();
  return records ? recorder_->Run(shape, work) : work();
}

// The group loss is equal on all ranks, so all of them search for the layer together.
absl::Status Replica::CheckFinite(const LossPart& group, std::span<const BatchView> batches) {
  if (std::isfinite(group.loss)) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(flow_->AwaitOperations());
  const uint64_t none = graph_.size();
  uint64_t mine = none;
  for (const BatchView& batch : batches) {
    CADRE_ASSIGN_OR_RETURN(const int layer, network_->FirstNotFinite(batch));
    mine = std::min<uint64_t>(mine, layer);
  }
  return NonFiniteLoss(group.loss, mine);
}

absl::Status Replica::NonFiniteLoss(double loss, uint64_t layer) {
  CADRE_ASSIGN_OR_RETURN(const Minimum first, MinimumOf(layer, comms_.All()));
  if (first.value == static_cast<uint64_t>(graph_.size())) {
    return absl::OutOfRangeError(
        absl::StrCat("the loss is ", loss,
                     "; the output of every layer is finite, so the loss itself overflowed"));
  }
  return absl::OutOfRangeError(absl::StrCat("the loss is ", loss,
                                            "; the first non-finite output is that of layer '",
                                            graph_[first.value].name, "' on rank ", first.rank));
}

absl::Status Replica::CheckWeights() {
  CADRE_RETURN_IF_ERROR(flow_->AwaitOperations());
  const uint64_t none = index_.size();
  uint64_t mine = none;
  if (!slices_->AllFinite()) {
    CADRE_RETURN_IF_ERROR(FetchOwned());
    for (const Owned& owned : slices_->weights()) {
      const auto bad = std::find_if(owned.values.begin(), owned.values.end(),
                                    [](float value) { return !std::isfinite(value); });
      if (bad == owned.values.end()) continue;
      mine = owned.positions.begin + (bad - owned.values.begin());
      break;
    }
  }
  CADRE_RETURN_IF_ERROR(device_.status());
  CADRE_ASSIGN_OR_RETURN(const Minimum first, MinimumOf(mine, comms_.All()));
  if (first.value == none) return absl::OkStatus();
  const int64_t position = first.value;
  const int tensor = index_.RangesOf(position, position + 1)[0].tensor();
  return absl::OutOfRangeError(absl::StrCat("the update of '", index_[tensor].name,
                                            "' produced a non-finite value, first on rank ",
                                            first.rank));
}

absl::StatusOr<uint64_t> Replica::GroupDigest() {
  CADRE_RETURN_IF_ERROR(FetchOwned());
  uint64_t digest[] = {slices_->Digest()};
  CADRE_RETURN_IF_ERROR(comms_.All().AllReduceSum(std::span<uint64_t>(digest)));
  return digest[0];
}

std::vector<v1::HeldParameter> Replica::Held() const {
  std::vector<v1::HeldParameter> held(index_.parameters().size());
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& bucket = parameters_.ownership(b);
    for (const LocalParameter& local : bucket.parameters) {
      const Parameter& parameter = index_[local.parameter];
      v1::HeldParameter& entry = held[local.parameter];
      entry.set_parameter(parameter.name);
      entry.set_elements(local.size());
      entry.set_of(parameter.shape.elements());
    }
    for (const OwnedInterval& owned : bucket.owned) {
      v1::HeldParameter& entry = held[owned.parameter];
      entry.set_owned(entry.owned() + owned.positions.size());
    }
  }
  return held;
}

v1::MemoryUse Replica::Memory() const {
  v1::MemoryUse use;
  // Includes the copies of weights in the type that layers compute in.
  use.set_weights(parameters_.weight_bytes() / 4 * BytesPerWeight(kernels_.activation_type()));
  use.set_gradients(parameters_.gradient_bytes());
  uint64_t state = 0;
  for (const SliceOptimizer& optimizer : optimizers_) state += optimizer.state_bytes();
  use.set_optimizer(state);
  use.set_activations(network_->activation_bytes());
  use.set_buffers(network_->buffer_bytes());
  return use;
}

v1::MemoryUse Replica::PlannedMemory() const {
  return cadre::PlannedMemory(spec_, graph_, index_, plan_, comms_.rank(), KindOf(device_),
                              InFlight());
}

std::vector<v1::Fallback> Replica::Fallbacks() const {
  std::vector<v1::Fallback> fallbacks;
  const auto add = [&](v1::Fallback::Kind kind, int64_t count, const std::string& reason) {
    if (count == 0) return;
    v1::Fallback& fallback = fallbacks.emplace_back();
    fallback.set_kind(kind);
    fallback.set_count(count);
    fallback.set_reason(reason);
  };
  if (recorder_ != nullptr) {
    add(v1::Fallback::RECORDING, recorder_->refused(), recorder_->refusal());
  }
  const BackendFallbacks of_kernels = kernels_.fallbacks();
  add(v1::Fallback::CONVOLUTION, of_kernels.convolutions, of_kernels.convolution_reason);
  add(v1::Fallback::ATTENTION, of_kernels.attentions, of_kernels.attention_reason);
  return fallbacks;
}

}  // namespace cadre
