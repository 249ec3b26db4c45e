#include "worker/train/replica.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status.h"
#include "spec/memory.h"
#include "worker/nn/asking.h"
#include "worker/train/bucket_flow.h"
#include "worker/train/stream_flow.h"

namespace cadre {
namespace {

template <typename T>
std::span<T> Slice(std::span<T> buffer, const BucketOwnership& bucket) {
  return buffer.subspan(static_cast<size_t>(bucket.slice_begin()),
                        static_cast<size_t>(bucket.slice_end() - bucket.slice_begin()));
}

Precision PrecisionOf(const v1::RunSpec& spec) {
  switch (spec.precision()) {
    case v1::TF32:
      return Precision::kTf32;
    case v1::BF16:
      return Precision::kBf16;
    default:
      return Precision::kFp32;
  }
}

// Of the native collectives that the plan has, the members. Every bucket has its own, so that all
// ranks list the same.
std::vector<std::vector<std::string>> NativeAxes(const Plan& plan) {
  std::vector<std::vector<std::string>> axes;
  for (const Bucket& bucket : plan.buckets) {
    if (bucket.algorithm != Algorithm::kNative) continue;
    std::vector<std::string> owners = bucket.axes;
    owners.insert(owners.end(), bucket.same.begin(), bucket.same.end());
    axes.push_back(bucket.axes);
    axes.push_back(std::move(owners));
  }
  return axes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> Replica::Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan_proto, Kernels& kernels,
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
                 Kernels& kernels, Transport& control, Transport& data)
    : spec_(spec),
      graph_(std::move(graph)),
      index_(std::move(index)),
      plan_(std::move(plan)),
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
      norms_(spec.optimizer(), static_cast<int>(index_.parameters().size())) {
  // On the host slices are updated beside the network's computing, unless the rank is alone.
  if (device_.is_host() && data.size() > 1) update_kernels_ = kernels.OneThread();
  TakeSlices(update_kernels_ != nullptr ? *update_kernels_ : kernels);
  flow_ = MakeFlow(data);
  network_->set_listener(flow_.get());
}

// What is enqueued may still touch what goes.
Replica::~Replica() {
  if (!device_.is_host()) static_cast<void>(device_.Synchronize());
  for (const std::span<std::byte> memory : registered_) {
    data_comms_.transport().ForgetMemory(memory);
  }
}

std::unique_ptr<GradientFlow> Replica::MakeFlow(Transport& data) {
  const bool overlap = spec_.cluster().overlap() != v1::OFF;
  if (device_.is_host()) {
    return std::make_unique<BucketFlow>(plan_, index_, parameters_, optimizers_, norms_,
                                        data_comms_, data, overlap);
  }
  auto flow = std::make_unique<StreamFlow>(plan_, index_, parameters_, optimizers_, norms_,
                                           *mirror_, data_comms_, kernels_, overlap);
  if (data.size() == 1) recorder_ = std::make_unique<StepRecorder>(device_, *flow);
  return flow;
}

absl::Status Replica::Prepare() {
  CADRE_RETURN_IF_ERROR(device_.status());
  CADRE_RETURN_IF_ERROR(data_comms_.Prepare(NativeAxes(plan_)));
  for (const int64_t samples : MicroBatchSizes(spec_)) {
    CADRE_RETURN_IF_ERROR(network_->Prepare(samples, /*training=*/true));
  }
  // A lack of pinned memory shall show now, not hours later.
  const v1::Checkpoint& checkpoint = spec_.checkpoint();
  if (!device_.is_host() && (!checkpoint.directory().empty() || !checkpoint.from().empty())) {
    for (int i = 0; i < states(); ++i) StateMirror(i);
  }
  CADRE_RETURN_IF_ERROR(device_.status());
  RegisterBuffers();
  return absl::OkStatus();
}

void Replica::RegisterBuffers() {
  Transport& data = data_comms_.transport();
  if (!data.has_native() || data.size() == 1) return;
  for (int b = 0; b < parameters_.buckets(); ++b) {
    if (plan_.buckets[static_cast<size_t>(b)].algorithm != Algorithm::kNative) continue;
    for (const std::span<float> buffer :
         {parameters_.weights(b), parameters_.gradients(b), parameters_.sums(b)}) {
      if (buffer.empty()) continue;
      registered_.push_back(std::as_writable_bytes(buffer));
      data.RegisterMemory(registered_.back());
    }
  }
}

void Replica::TakeSlices(Kernels& kernels) {
  const std::vector<float> momenta = StatisticMomenta(graph_, index_);
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const Asking asking(device_, BucketForPeople(index_, parameters_.ownership(b)));
    optimizers_.emplace_back(kernels, spec_.optimizer(), index_, momenta, parameters_.ownership(b));
  }
  std::vector<std::span<float>> slices;
  for (int b = 0; b < parameters_.buckets(); ++b) {
    slices.push_back(Slice(parameters_.weights(b), parameters_.ownership(b)));
  }
  const Asking asking(device_, "weights as the host sees them");
  mirror_ = std::make_unique<SliceMirror>(device_, std::move(slices));
  // Where there is no memory Make fails.
  if (device_.status().ok()) {
    owned_ = OwnedIn([this](int b) { return mirror_->host(static_cast<size_t>(b)).data(); });
  }
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
  const SliceMirror& mirror = StateMirror(i);
  return OwnedIn([&mirror](int b) { return mirror.host(static_cast<size_t>(b)).data(); });
}

SliceMirror& Replica::StateMirror(int i) {
  state_mirrors_.resize(static_cast<size_t>(states()));
  std::unique_ptr<SliceMirror>& mirror = state_mirrors_[static_cast<size_t>(i)];
  if (mirror == nullptr) {
    std::vector<std::span<float>> slices;
    for (SliceOptimizer& optimizer : optimizers_) slices.push_back(optimizer.state(i));
    const Asking asking(device_, "the optimiser's state as the host sees it");
    mirror = std::make_unique<SliceMirror>(device_, std::move(slices));
  }
  return *mirror;
}

absl::Status Replica::FetchOwned(bool states) {
  if (device_.is_host()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(flow_->Settle());
  if (mirrored_ && !states) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(CopyOwned(states, [](SliceMirror& mirror) {
    for (size_t i = 0; i < mirror.size(); ++i) mirror.CopyOutLater(i);
  }));
  mirrored_ = true;
  return absl::OkStatus();
}

absl::Status Replica::StoreOwned(bool states) {
  if (device_.is_host()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(CopyOwned(states, [](SliceMirror& mirror) {
    for (size_t i = 0; i < mirror.size(); ++i) mirror.CopyInLater(i);
  }));
  for (size_t i = 0; i < mirror_->size(); ++i) {
    if (!mirror_->slice(i).empty()) kernels_.WeightsChanged(mirror_->slice(i));
  }
  mirrored_ = true;
  return flow_->Settle();
}

absl::Status Replica::CopyOwned(bool states, const std::function<void(SliceMirror& mirror)>& copy) {
  const OnLane copies(device_, Lane::kCopies);
  copy(*mirror_);
  for (int i = 0; states && i < this->states(); ++i) copy(StateMirror(i));
  const std::unique_ptr<DeviceEvent> copied = device_.MakeEvent();
  device_.Record(*copied);
  return device_.Await(*copied);
}

void Replica::set_updates(int64_t updates) {
  for (SliceOptimizer& optimizer : optimizers_) optimizer.set_updates(updates);
}

absl::StatusOr<LossPart> Replica::Step(std::span<const BatchView> batches, float rate,
                                       bool gather) {
  CHECK(!batches.empty());
  int64_t samples = 0;
  for (const BatchView& batch : batches) samples += batch.samples;
  mirrored_ = false;
  flow_->BeginStep(rate, gather, samples * graph_.labels_per_sample());
  if (absl::Status passed = Passes(batches, samples); !passed.ok()) {
    flow_->Fail(passed);
    return passed;
  }
  CADRE_ASSIGN_OR_RETURN(const LossPart group, flow_->AwaitLoss());
  CADRE_RETURN_IF_ERROR(CheckFinite(group, batches));
  // The flow has had the slices copied.
  mirrored_ = !gather;
  return group;
}

absl::Status Replica::Passes(std::span<const BatchView> batches, int64_t samples) {
  const auto labels = static_cast<float>(samples * graph_.labels_per_sample());
  for (size_t i = 0; i < batches.size(); ++i) {
    const bool last = i + 1 == batches.size();
    if (last) flow_->BeginLastPass();
    const double share = static_cast<double>(batches[i].samples) /
                         static_cast<double>(std::max<int64_t>(1, samples));
    CADRE_RETURN_IF_ERROR(Pass(batches[i], 1.0F / labels, share, last));
  }
  return absl::OkStatus();
}

absl::Status Replica::Pass(const BatchView& batch, float loss_scale, double share, bool last) {
  CADRE_RETURN_IF_ERROR(network_->Load(batch));
  StepRecorder::Shape shape{.samples = batch.samples,
                            .loss_scale = loss_scale,
                            .share = share,
                            .memory_moves = network_->memory_moves()};
  CADRE_RETURN_IF_ERROR(
      Half(shape, [&] { return network_->PlayForward(batch.samples, loss_scale, share); }));
  shape.half = StepRecorder::Half::kBackward;
  return Half(shape, [&] {
    CADRE_RETURN_IF_ERROR(network_->PlayBackward(batch.samples));
    if (last) return flow_->EndStep();
    flow_->EndPass();
    return absl::OkStatus();
  });
}

absl::Status Replica::Half(const StepRecorder::Shape& shape,
                           const std::function<absl::Status()>& work) {
  // Whoever observes the network stands between its operations.
  const bool records = recorder_ != nullptr && recordings_ && !observed_;
  return records ? recorder_->Run(shape, work) : work();
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
  CADRE_RETURN_IF_ERROR(FetchOwned());
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
  CADRE_RETURN_IF_ERROR(FetchOwned());
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
  // As the kernels hold them: with the copies that they multiply.
  const int64_t weights = parameters_.weight_bytes() / static_cast<int64_t>(sizeof(float));
  use.set_weights(static_cast<uint64_t>(weights * BytesPerWeight(kernels_.activation_type())));
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
  const v1::ComputeDevice device = device_.is_host() ? v1::CPU : v1::CUDA;
  return cadre::PlannedMemory(spec_, graph_, index_, plan_, comms_.rank(), device);
}

}  // namespace cadre
