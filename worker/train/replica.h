// One rank's part of the group's replica: its parameters, its part of the network, its slices and
// their optimisers; and the training step.
//
// The step: forward and backward of every micro-batch; per bucket, reduce-scatter the gradients
// over the bucket's axes; norms over the group where the optimiser needs them; update the owned
// slices; all-gather. What comes after backward goes on in the background (bucket_flow.h) while the
// next step computes. Every H steps the exchange with the aggregators comes before the all-gather,
// which then is a call of its own.
//
// On a device the same steps are enqueued (stream_flow.h). A rank that is alone plays them from
// recordings where that is possible; ranks of a larger group enqueue anew in every step, for NCCL
// asks that all ranks record and play alike, which nobody makes them agree on (step_recorder.h
// says what it would take). What a rank owns then lies in the device's memory, and the host
// sees a mirror of it: FetchOwned brings it up to date before somebody reads it, StoreOwned brings
// back what somebody wrote. On the host, owned values are the weights themselves and both do
// nothing.
//
// Owns all of it; borrows kernels and transports. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/nn/network.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/optim/step_norms.h"
#include "worker/train/gradient_flow.h"
#include "worker/train/shard_exchange.h"
#include "worker/train/slice_mirror.h"
#include "worker/train/step_recorder.h"
#include "worker/transport/transport.h"

namespace cadre {

class Replica {
 public:
  // Weights are version 0: the pure function of the spec's seed, the same whatever the plan.
  // `control`: for what the host says (digests, agreement); `data`: for what lies in the memory of
  // the kernels' device. On the host they are one.
  // Requires: both have the ranks of the plan's mesh.
  // Errors: InvalidArgument for a plan that does not fit model or group, or a precision that the
  // device does not have; ResourceExhausted for a model that does not fit the device's memory, in
  // its words.
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan, Kernels& kernels,
                                                       Transport& control, Transport& data);
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan, Kernels& kernels,
                                                       Transport& transport) {
    return Make(spec, plan, kernels, transport, transport);
  }
  ~Replica();

  const v1::RunSpec& spec() const { return spec_; }
  const Graph& graph() const { return graph_; }
  const ParameterIndex& index() const { return index_; }
  const Plan& plan() const { return plan_; }
  MeshCommunicators& comms() { return comms_; }
  const MeshCommunicators& comms() const { return comms_; }
  // Of activations, gradients and weights; on the host, those above.
  const MeshCommunicators& data_comms() const { return data_comms_; }

  // Which rows of a batch of `samples` this rank needs inputs and labels of.
  Rows InputRows(int64_t samples) const { return network_->InputRows(samples); }
  Rows LabelRows(int64_t samples) const { return network_->LabelRows(samples); }

  // One step. The batches are the step's micro-batches, in order. Returns the loss of the whole
  // group, the same on every rank, while reductions and updates may still be under way: see Settle.
  // `gather`: every rank gets the new weights; otherwise only the owned slices hold them until
  // GatherWeights. Errors: OutOfRange, naming layer and rank, for a loss that is not finite;
  // weights are then as they were. Errors of the step before may come only here.
  absl::StatusOr<LossPart> Step(std::span<const BatchView> batches, float rate,
                                bool gather = false);
  // Returns when nothing is under way. Whoever looks at owned slices or at state calls it first,
  // and then FetchOwned.
  absl::Status Settle() { return flow_->Settle(); }
  // Brings what this rank owns, and with `states` the optimisers' states, to where owned() and
  // OwnedState() say; after a step without `gather`, weights are there already and are only waited
  // for. Settles, on devices.
  absl::Status FetchOwned(bool states = false);
  // The other way. Requires: settled; no step since what was written was fetched or overwritten as
  // a whole.
  absl::Status StoreOwned(bool states = false);
  // An update can overflow where the loss did not. A collective; settles and fetches. Errors:
  // OutOfRange, naming the first parameter that is not finite and its rank.
  absl::Status CheckWeights();
  // Every rank gets the slices of the others; in the background, forward waits for it.
  absl::Status GatherWeights() { return flow_->Gather(); }

  // This rank's part of the loss. Requires: GatherWeights was called after the last change of owned
  // slices.
  absl::StatusOr<LossPart> Evaluate(const BatchView& batch) { return network_->Evaluate(batch); }

  // What this rank owns, in flat order. Writing through `values`, and StoreOwned, changes the
  // weights.
  std::span<const OwnedSpan> owned() const { return owned_; }
  // Additive digest of the owned slices; the ranks' digests add up to the model's. Requires:
  // settled and fetched.
  uint64_t OwnedDigest() const;
  // Digest of the group's model. A collective; settles and fetches.
  absl::StatusOr<uint64_t> GroupDigest();

  // The optimiser's state tensor `i` (spec/optimizer_state.h) of what this rank owns, in flat
  // order.
  std::vector<OwnedSpan> OwnedState(int i);
  int states() const { return optimizers_.empty() ? 0 : optimizers_.front().states(); }
  int64_t updates() const { return optimizers_.empty() ? 0 : optimizers_.front().updates(); }
  void set_updates(int64_t updates);

  // See Network.
  void set_observer(TapeObserver* observer) {
    observed_ = observer != nullptr;
    network_->set_observer(observer);
  }
  // See GradientFlow. Requires: settled.
  void set_flow_observer(FlowObserver* observer) { flow_->set_observer(observer); }
  // Collectives, updates and waits are added to it; null: to none. Requires: settled.
  void set_trace(Trace* trace) { flow_->set_trace(trace); }
  // False on the host.
  bool on_device() const { return !device_.is_host(); }
  // Number of the next step, for the trace.
  void set_step(int64_t step) { flow_->set_step(step); }
  // Seconds that the rank's own thread has spent in moves; in waits for what the background had not
  // finished; and in both. On a device nobody measures what it waits for: the second is 0, and the
  // first is of those moves alone that somebody observed.
  double seconds_moving() const { return network_->seconds_moving(); }
  double seconds_waited() const { return flow_->seconds_waited(); }
  double seconds_exposed() const { return flow_->seconds_waited() + network_->seconds_moving(); }
  // Null on the host, and where the data's transport has more than one rank.
  const StepRecorder* recorder() const { return recorder_.get(); }
  // Off: everything is enqueued anew in every step, to see what recordings are worth.
  void set_recordings(bool on) { recordings_ = on; }

  // For the status: what this rank holds and owns of every parameter, and its memory.
  std::vector<v1::HeldParameter> Held() const;
  v1::MemoryUse Memory() const;
  v1::MemoryUse PlannedMemory() const;

 private:
  Replica(const v1::RunSpec& spec, Graph graph, ParameterIndex index, Plan plan, Kernels& kernels,
          Transport& control, Transport& data);
  absl::Status Prepare();
  // Tells the data's transport of the buffers that its library's own collectives work on.
  void RegisterBuffers();
  // Makes the optimisers of the owned slices, and the list of what is owned.
  void TakeSlices(Kernels& kernels);
  std::unique_ptr<GradientFlow> MakeFlow(Transport& data);
  // The optimisers' states `i`, as the host sees them.
  SliceMirror& StateMirror(int i);
  absl::Status Passes(std::span<const BatchView> batches, int64_t samples);
  absl::Status Pass(const BatchView& batch, float loss_scale, double share, bool last);
  // Does half of a pass, or plays what was recorded of it.
  absl::Status Half(const StepRecorder::Shape& shape, const std::function<absl::Status()>& work);
  // Runs `copy` for weights, and states where asked for, on the lane for copies, and waits.
  absl::Status CopyOwned(bool states, const std::function<void(SliceMirror& mirror)>& copy);
  absl::Status CheckFinite(const LossPart& group, std::span<const BatchView> batches);
  // The least of what the ranks say, and the rank that says it.
  struct Least {
    uint64_t value = 0;
    int rank = 0;
  };
  absl::StatusOr<Least> LeastOf(uint64_t mine);
  // The positions in optimizers' slices of what is owned.
  std::vector<OwnedSpan> OwnedIn(const std::function<float*(int bucket)>& slice) const;

  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  const Plan plan_;
  Kernels& kernels_;
  Device& device_;
  MeshCommunicators comms_;
  // Only where data travel by a transport of their own.
  std::unique_ptr<MeshCommunicators> comms_of_data_;
  MeshCommunicators& data_comms_;
  ParameterStore parameters_;
  std::unique_ptr<Network> network_;
  // Null for a rank that is alone.
  std::unique_ptr<Kernels> update_kernels_;
  // By bucket.
  std::vector<SliceOptimizer> optimizers_;
  StepNorms norms_;
  // Registered with the data's transport.
  std::vector<std::span<std::byte>> registered_;
  // Of the weights; and of the optimisers' states, made when first asked for.
  std::unique_ptr<SliceMirror> mirror_;
  std::vector<std::unique_ptr<SliceMirror>> state_mirrors_;
  // The mirror shows the weights as they are, once settled.
  bool mirrored_ = false;
  bool observed_ = false;
  bool recordings_ = true;
  std::vector<OwnedSpan> owned_;
  // After all that its thread works on.
  std::unique_ptr<GradientFlow> flow_;
  std::unique_ptr<StepRecorder> recorder_;
};

}  // namespace cadre
