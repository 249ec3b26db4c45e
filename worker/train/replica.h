// One rank's part of the group's replica: its parameters, its part of the network, its slices and
// their optimisers; and the training step.
//
// The step: forward and backward of every micro-batch; per bucket, reduce-scatter the gradients
// over the bucket's axes; norms over the group where the optimiser needs them; update the owned
// slices. The all-gather that ends the step is a call of its own, because every H steps the
// exchange with the aggregators comes in between.
//
// Owns all of it; borrows kernels and transport. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/comm/transport.h"
#include "worker/nn/network.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/train/shard_exchange.h"

namespace cadre {

class Replica {
 public:
  // Weights are version 0: the pure function of the spec's seed, the same whatever the plan.
  // Requires: transport.size() == ranks of the plan's mesh.
  // Errors: InvalidArgument for a plan that does not fit model or group.
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan, Kernels& kernels,
                                                       Transport& transport);

  const Graph& graph() const { return graph_; }
  const ParameterIndex& index() const { return index_; }
  const Plan& plan() const { return plan_; }
  MeshCommunicators& comms() { return comms_; }

  // Which rows of a batch of `samples` this rank needs inputs and labels of.
  Rows InputRows(int64_t samples) const { return network_->InputRows(samples); }
  Rows LabelRows(int64_t samples) const { return network_->LabelRows(samples); }

  // One step but for its last part: afterwards only the owned slices hold the new weights. The
  // batches are the step's micro-batches, in order. Returns the loss of the whole group, the same
  // on every rank. Errors: OutOfRange, naming layer and rank, for a loss that is not finite;
  // weights are then as they were.
  absl::StatusOr<LossPart> Step(std::span<const BatchView> batches, float rate);
  // An update can overflow where the loss did not. A collective. Errors: OutOfRange, naming the
  // first parameter that is not finite and its rank.
  absl::Status CheckWeights();
  // The last part: every rank gets the slices of the others.
  absl::Status GatherWeights();

  // This rank's part of the loss. Requires: GatherWeights was called after the last change of owned
  // slices.
  absl::StatusOr<LossPart> Evaluate(const BatchView& batch) { return network_->Evaluate(batch); }

  // What this rank owns, in flat order. Writing through `values` changes the weights.
  std::span<const OwnedSpan> owned() const { return owned_; }
  // Additive digest of the owned slices; the ranks' digests add up to the model's.
  uint64_t OwnedDigest() const;
  // Digest of the group's model. A collective.
  absl::StatusOr<uint64_t> GroupDigest();

  // The optimiser's state tensor `i` (spec/optimizer_state.h) of what this rank owns, in flat
  // order.
  std::vector<OwnedSpan> OwnedState(int i);
  int states() const { return optimizers_.empty() ? 0 : optimizers_.front().states(); }
  int64_t updates() const { return optimizers_.empty() ? 0 : optimizers_.front().updates(); }
  void set_updates(int64_t updates);

  // See Network.
  void set_observer(TapeObserver* observer) { network_->set_observer(observer); }

  // For the status: what this rank holds and owns of every parameter, and its memory.
  std::vector<v1::HeldParameter> Held() const;
  v1::MemoryUse Memory() const;
  v1::MemoryUse PlannedMemory() const;

 private:
  Replica(const v1::RunSpec& spec, Graph graph, ParameterIndex index, Plan plan, Kernels& kernels,
          Transport& transport);
  // Makes the optimisers of the owned slices, and the list of what is owned.
  void TakeSlices(Kernels& kernels);
  absl::StatusOr<LossPart> Passes(std::span<const BatchView> batches);
  void AddUpGradients(bool first);
  // Where gradients of the whole step are.
  std::span<float> StepGradients(int bucket);
  absl::Status CheckFinite(const LossPart& group, std::span<const BatchView> batches);
  // The least of what the ranks say, and the rank that says it.
  struct Least {
    uint64_t value = 0;
    int rank = 0;
  };
  absl::StatusOr<Least> LeastOf(uint64_t mine);
  absl::Status ReduceGradients();
  // The positions in optimizers' slices of what is owned.
  std::vector<OwnedSpan> OwnedIn(const std::function<float*(int bucket)>& slice) const;

  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  const Plan plan_;
  MeshCommunicators comms_;
  ParameterStore parameters_;
  std::unique_ptr<Network> network_;
  // By bucket.
  std::vector<SliceOptimizer> optimizers_;
  StepNorms norms_;
  std::vector<OwnedSpan> owned_;
};

}  // namespace cadre
