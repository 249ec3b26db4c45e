#include "worker/train/warm_up.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "comm/transport/transport.h"
#include "plan/cost/collective_cost.h"
#include "plan/memory.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "worker/train/replica.h"

namespace cadre {
namespace {

// Any rate serves, because the updated weights are discarded.
constexpr float kLearningRate = 0.01F;

// The transport of a rank whose peers do not take part: what is sent is discarded, and receive
// buffers are left unchanged. With a device, the buffers are in the memory of that device.
class MutedTransport final : public Transport {
 public:
  // `device` may be null.
  MutedTransport(int rank, int size, Device* device) : rank_(rank), size_(size), device_(device) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  LinkKind link(int peer) const override {
    return peer == rank_ ? LinkKind::kSelf : LinkKind::kThreads;
  }
  bool on_device() const override { return device_ != nullptr; }
  bool has_native() const override { return on_device(); }
  bool HasNativeFor(std::span<const int> /*members*/) const override { return on_device(); }

  absl::Status Run(int /*channel*/, const CallTag& /*tag*/, std::span<const Transfer> /*transfers*/,
                   const Combine& /*combine*/) override {
    return status();
  }
  absl::Status RunNative(int /*channel*/, const CallTag& /*tag*/,
                         const NativeCall& /*call*/) override {
    return status();
  }
  absl::Status CopyWithin(std::span<const std::byte> from, std::span<std::byte> to) override {
    if (device_ == nullptr) return Transport::CopyWithin(from, to);
    if (!from.empty()) device_->Copy(from.data(), to.data(), from.size());
    return device_->status();
  }

  void Abort(absl::Status reason) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    status_.Update(std::move(reason));
  }
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  const int rank_;
  const int size_;
  Device* const device_;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Batches of zeros. All of them are views of the same buffers.
class ZeroBatches {
 public:
  ZeroBatches(const Replica& replica, const std::vector<int64_t>& sizes) : replica_(replica) {
    for (const int64_t samples : sizes) {
      inputs_.resize(std::max(inputs_.size(), Inputs(samples)));
      labels_.resize(std::max(labels_.size(), Labels(samples)));
    }
  }
  BatchView View(int64_t samples, int64_t first_in_step) const {
    return {.samples = samples,
            .inputs = std::span(inputs_).first(Inputs(samples)),
            .labels = std::span(labels_).first(Labels(samples)),
            .first_position = first_in_step,
            .first_in_step = first_in_step};
  }

 private:
  size_t Inputs(int64_t samples) const {
    return replica_.network().batches().InputRows(samples).size() *
           replica_.graph().input().elements();
  }
  size_t Labels(int64_t samples) const {
    return replica_.network().batches().LabelRows(samples).size() *
           replica_.graph().labels_per_sample();
  }

  const Replica& replica_;
  std::vector<float> inputs_;
  std::vector<int32_t> labels_;
};

// Adds collective algorithms to the assigned plan. They normally depend on the measured link, which
// is not known yet. An arbitrary link serves: it only decides how gradients are reduced, and the
// muted transport reduces none.
absl::StatusOr<v1::Plan> WithArbitraryLink(const v1::RunSpec& spec, const v1::Plan& assigned) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  CADRE_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(assigned, graph, index));
  const LinkProfile arbitrary{.alpha = 1e-5, .beta = 1e-10};
  plan = WithCollectives(std::move(plan), graph, index, spec.cluster().collectives(), arbitrary,
                         v1::LinkProfile::NCCL);
  return PlanToProto(plan, index);
}

absl::Status StepAndEvaluate(Replica& replica, const v1::RunSpec& spec) {
  const std::vector<int64_t> sizes = MicroBatchSizes(spec);
  const int64_t evaluation_samples = replica.EvaluationSamples();
  std::vector<int64_t> all_sizes = sizes;
  all_sizes.push_back(evaluation_samples);
  const ZeroBatches zeros(replica, all_sizes);
  std::vector<BatchView> batches;
  int64_t begin = 0;
  for (const int64_t samples : sizes) {
    batches.push_back(zeros.View(samples, begin));
    begin += samples;
  }
  const absl::Status stepped = replica.Step(batches, kLearningRate, /*gather=*/true).status();
  // OutOfRange: the loss is not finite, which can happen without the peers' values.
  if (!stepped.ok() && !absl::IsOutOfRange(stepped)) return stepped;
  CADRE_RETURN_IF_ERROR(replica.network().Evaluate(zeros.View(evaluation_samples, 0)).status());
  return replica.AwaitOperations();
}

}  // namespace

absl::Status WarmUp(const v1::RunSpec& spec, const v1::Plan& plan, Backend& kernels, int rank) {
  CADRE_ASSIGN_OR_RETURN(const v1::Plan complete, WithArbitraryLink(spec, plan));
  int ranks = 1;
  for (const v1::MeshAxis& axis : plan.mesh()) ranks *= axis.size();
  Device* const device = kernels.device().is_host() ? nullptr : &kernels.device();
  MutedTransport control(rank, ranks, nullptr);
  MutedTransport data(rank, ranks, device);
  // Without checkpoints, the replica allocates no pinned memory for copies of its state.
  v1::RunSpec unsaved = spec;
  unsaved.clear_checkpoint();
  CADRE_ASSIGN_OR_RETURN(const auto replica,
                         Replica::Make(unsaved, complete, kernels, control, data));
  return StepAndEvaluate(*replica, unsaved);
}

}  // namespace cadre
