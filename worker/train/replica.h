// One rank's part of a group's replica of the model: its parameters, its part of the network, the
// slices (parts of buckets) that it owns with their optimizers, and the training step (replica.cc).
//
// On a device, owned values are in device memory, and the host has a mirror of them: FetchOwned
// updates the mirror before it is read, and StoreOwned copies back what was written to it. On the
// host the owned values are the weights themselves.
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
#include "base/status.h"
#include "comm/mesh_communicators.h"
#include "comm/transport/transport.h"
#include "device/device.h"
#include "kernels/backend.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/memory.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/nn/network.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/optim/step_norms.h"
#include "worker/train/gradient_flow.h"
#include "worker/train/owned_slices.h"
#include "worker/train/step_recorder.h"

namespace cadre {

class Replica {
 public:
  // The weights are those of version 0, which depend only on the spec's seed. `control` carries
  // host data (digests, agreement), `data` carries device data; on the host they may be the same.
  // Requires: both connect the ranks of the plan's mesh. Errors: InvalidArgument for a plan that
  // does not fit model or group, or a precision that the device does not support;
  // ResourceExhausted, with the device's message, for a model that does not fit its memory.
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan, Backend& kernels,
                                                       Transport& control, Transport& data);
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan, Backend& kernels,
                                                       Transport& transport) {
    return Make(spec, plan, kernels, transport, transport);
  }
  ~Replica();

  const v1::RunSpec& spec() const { return spec_; }
  const Graph& graph() const { return graph_; }
  const ParameterIndex& index() const { return index_; }
  const Plan& plan() const { return plan_; }
  MeshCommunicators& comms() { return comms_; }
  // The communicators of activations, gradients and weights; on the host, comms().
  const MeshCommunicators& data_comms() const { return data_comms_; }
  MeshCommunicators& data_comms() { return data_comms_; }

  // This rank's part of the neural network. Requires for evaluation: flow().Gather() was called
  // after the last change of owned values.
  Network& network() { return *network_; }
  const Network& network() const { return *network_; }
  // What exchanges gradients and weights, for its observers.
  GradientFlow& flow() { return *flow_; }

  // One step. `batches`: the step's micro-batches, in order. Returns the loss of the whole group,
  // equal on all ranks; reductions and updates may still be running (see AwaitOperations).
  // `gather`: all ranks get the new weights; otherwise only the owners of slices have them, until
  // flow().Gather(). Errors: OutOfRange, naming layer and rank, for a loss that is not finite;
  // weights are then unchanged. May also return an error of the step before.
  absl::StatusOr<LossPart> Step(std::span<const BatchView> batches, float rate,
                                bool gather = false);
  // Returns when no operation of the step is running. Required before the owned values or states
  // are read or written.
  absl::Status AwaitOperations() { return flow_->AwaitOperations(); }
  // Waits for all operations, and copies the owned weights to the host's mirror; with `states` also
  // the optimizer states. Cheap after a step without `gather`, which has copied the weights
  // already.
  absl::Status FetchOwned(bool states = false) {
    CADRE_RETURN_IF_ERROR(flow_->AwaitOperations());
    return slices_->Fetch(states);
  }
  // Copies the host's mirror back. Requires: no operation is running; since the last step, the
  // mirror was fetched or completely overwritten.
  absl::Status StoreOwned(bool states = false) {
    CADRE_RETURN_IF_ERROR(slices_->Store(states));
    return flow_->AwaitOperations();
  }
  // Checks that the weights are finite, because an update can overflow although the loss did not.
  // A collective; waits for all operations. Errors: OutOfRange, naming the first non-finite
  // parameter and its rank.
  absl::Status CheckWeights();

  // Samples of an evaluation batch, over all ranks; equal on all ranks.
  int64_t EvaluationSamples() const { return cadre::EvaluationSamples(spec_, graph_, plan_); }
  // A collective. `layer`: what Network::FirstNotFinite has found on this rank. Returns OutOfRange,
  // naming the first layer and its rank; or errors of peers.
  absl::Status NonFiniteLoss(double loss, uint64_t layer);

  // The owned weights in parameter order. Writing to their values and calling StoreOwned changes
  // the weights.
  std::span<const Owned> owned() const { return slices_->weights(); }
  // The owned weights together with the optimizer's states.
  OwnedSlices& slices() { return *slices_; }
  // Digest of the group's model. A collective; calls FetchOwned.
  absl::StatusOr<uint64_t> GroupDigest();

  bool on_device() const { return !device_.is_host(); }
  // Seconds that the rank's own thread has spent in communication that computing did not hide:
  // moves and waits. On a device these are not observable, except moves that are observed.
  double seconds_exposed() const { return network_->seconds_moving() + flow_->seconds_waited(); }
  // Null on the host and in groups of several ranks.
  const StepRecorder* recorder() const { return recorder_.get(); }
  // False: no step is captured; all operations are enqueued in every step, for comparison.
  void set_recordings(bool on) { recordings_ = on; }

  // For the status: what this rank holds and owns of each parameter, and its memory.
  std::vector<v1::HeldParameter> Held() const;
  v1::MemoryUse Memory() const;
  v1::MemoryUse PlannedMemory() const;
  // What this rank has computed more slowly than its device could, so far; empty on the host.
  std::vector<v1::Fallback> Fallbacks() const;

 private:
  Replica(const v1::RunSpec& spec, Graph graph, ParameterIndex index, Plan plan, Backend& kernels,
          Transport& control, Transport& data);
  absl::Status Prepare();
  // The number of micro-batches whose activations this rank keeps at a time.
  int InFlight() const { return order_.InFlight(StageIn(order_, plan_.mesh, comms_.rank())); }
  // Registers the buffers of native collectives with the data transport.
  void RegisterBuffers();
  std::unique_ptr<GradientFlow> MakeFlow(Transport& data);
  absl::Status Passes(std::span<const BatchView> batches, int64_t samples);
  // `last`: there is no later pass in this direction.
  absl::Status Play(Pass pass, bool last, const StepRecorder::Shape& shape);
  // Runs `work`, or replays it from a captured graph.
  absl::Status PlayPhase(const StepRecorder::Shape& shape,
                         const std::function<absl::Status()>& work);
  absl::Status CheckFinite(const LossPart& group, std::span<const BatchView> batches);
  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  const Plan plan_;
  const PassOrder order_;
  Backend& kernels_;
  Device& device_;
  MeshCommunicators comms_;
  // Null if tensors use the transport of `comms_`.
  std::unique_ptr<MeshCommunicators> comms_of_data_;
  MeshCommunicators& data_comms_;
  ParameterStore parameters_;
  std::unique_ptr<Network> network_;
  // Kernels for updates in the background thread. Null in a group of one rank.
  std::unique_ptr<Backend> update_kernels_;
  // One per bucket.
  std::vector<SliceOptimizer> optimizers_;
  StepNorms norms_;
  // Buffers that are registered with the data transport.
  std::vector<std::span<std::byte>> registered_;
  std::unique_ptr<OwnedSlices> slices_;
  bool recordings_ = true;
  // Declared after everything that its thread uses.
  std::unique_ptr<GradientFlow> flow_;
  std::unique_ptr<StepRecorder> recorder_;
};

}  // namespace cadre
