// One rank's part of the group's replica: its parameters, its part of the network, its slices and
// their optimisers; and the training step.
//
// The step, per bucket: reduce-scatter the gradients over the bucket's axes, update the owned
// slice. The all-gather that ends the step is a call of its own, because every H steps the exchange
// with the aggregators comes in between.
//
// Owns all of it; borrows kernels and transport. Thread-compatible.
#pragma once

#include <cstdint>
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
  // Errors: InvalidArgument or Unimplemented for a plan that this engine cannot run.
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const v1::RunSpec& spec,
                                                       const v1::Plan& plan, Kernels& kernels,
                                                       Transport& transport);

  const ParameterIndex& index() const { return index_; }
  MeshCommunicators& comms() { return comms_; }

  // Which rows of a batch of `samples` this rank needs images and labels of.
  Rows ImageRows(int64_t samples) const { return network_->ImageRows(samples); }
  Rows LabelRows(int64_t samples) const { return network_->LabelRows(samples); }

  // One step but for its last part: afterwards only the owned slices hold the new weights.
  absl::StatusOr<LossPart> Step(int64_t samples, std::span<const float> images,
                                std::span<const int32_t> labels, float rate);
  // The last part: every rank gets the slices of the others.
  absl::Status GatherWeights();

  // Requires: GatherWeights was called after the last change of owned slices.
  absl::StatusOr<LossPart> Evaluate(int64_t samples, std::span<const float> images,
                                    std::span<const int32_t> labels) {
    return network_->Evaluate(samples, images, labels);
  }

  // What this rank owns, in flat order. Writing through `values` changes the weights.
  std::span<const OwnedSpan> owned() const { return owned_; }
  // Additive digest of the owned slices; the ranks' digests add up to the model's.
  uint64_t OwnedDigest() const;
  // Digest of the group's model. A collective.
  absl::StatusOr<uint64_t> GroupDigest();

  // For the status: what this rank holds and owns of every parameter.
  std::vector<v1::HeldParameter> Held() const;

 private:
  Replica(ParameterIndex index, Plan plan, uint64_t seed, Transport& transport);
  // Makes the optimisers of the owned slices, and the list of what is owned.
  void TakeSlices(const v1::Optimizer& optimizer, Kernels& kernels);

  const ParameterIndex index_;
  const Plan plan_;
  MeshCommunicators comms_;
  ParameterStore parameters_;
  std::unique_ptr<Network> network_;
  // By bucket.
  std::vector<SliceOptimizer> optimizers_;
  std::vector<OwnedSpan> owned_;
};

}  // namespace cadre
