// The way of gradients to weights: per bucket, reduce-scatter, update of the owned slice, and
// all-gather, in the background of the rank's own computing.
//
//   backward done with a bucket's layers -> reduce-scatter -> update -> all-gather
//                                                    -> next forward of its first layer
//
// Buckets are cut into chunks, so that a small bucket that is needed soon does not wait behind a
// large one. What the next forward needs first goes first (CollectiveQueue has the order). A slice
// is updated only when the group's loss is known to be finite, which travels before all gradients.
// Where the optimiser needs norms over the whole model, updates wait for all reductions.
//
// Without overlap gradients wait for the end of backward, and the rank's own thread for all that
// follows. A rank that is alone does it all on its own thread.
//
// Owns its queue; borrows the rest. Thread-compatible: the rank's own thread calls. What it borrows
// may be looked at by others only between Settle and the next step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/trace.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "worker/comm/collective_queue.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/nn/network.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/optim/step_norms.h"
#include "worker/train/bucket_parts.h"
#include "worker/train/flow_piece.h"
#include "worker/train/gradient_flow.h"

namespace cadre {

class BucketFlow final : public GradientFlow {
 public:
  // Requires: one optimiser per bucket; the comms are over `transport`.
  BucketFlow(const Plan& plan, const ParameterIndex& index, ParameterStore& parameters,
             std::vector<SliceOptimizer>& optimizers, StepNorms& norms, MeshCommunicators& comms,
             Transport& transport, bool overlap);

  void BeginStep(float rate, bool gather, int64_t labels) override;
  void BeginLastPass() override { last_pass_ = true; }
  void EndPass() override;
  absl::Status EndStep() override;
  absl::StatusOr<LossPart> AwaitLoss() override;
  void Fail(const absl::Status& reason) override;
  absl::Status Gather() override;
  absl::Status Settle() override;

  absl::Status BeforeForward(int layer) override;
  absl::Status AfterLoss(std::span<const double> sums, int64_t counted) override;
  absl::Status AfterBackward(int layer) override;

  double seconds_waited() const override { return seconds_waited_; }
  void set_trace(Trace* trace) override { trace_ = trace; }
  void set_observer(FlowObserver* observer) override { observer_ = observer; }
  void set_step(int64_t step) override { step_ = step; }

 private:
  enum class Phase : uint8_t { kLoss = 1, kReduce, kNorms, kGather };

  static uint64_t Key(Phase phase, int bucket = 0, int chunk = 0);
  int64_t Priority(Phase phase, int bucket) const;
  int buckets() const { return static_cast<int>(table_.buckets.size()); }
  const BucketParts& parts(int bucket) const { return table_.buckets[static_cast<size_t>(bucket)]; }
  const Bucket& bucket(int bucket) const { return plan_.buckets[static_cast<size_t>(bucket)]; }
  SliceOptimizer& optimizer(int bucket) { return optimizers_[static_cast<size_t>(bucket)]; }
  absl::Status ForChunks(const std::function<absl::Status(int bucket, int chunk)>& call);

  // Gradients of the whole step.
  std::span<float> Gradients(int bucket);
  template <typename T>
  std::span<T> Slice(std::span<T> buffer, int bucket) const;

  // To the queue; or done at once, where there is none.
  absl::Status Post(Phase phase, int bucket, int chunk, std::function<absl::Status()> work);
  void Expect(Phase phase, int bucket = 0, int chunk = 0);
  void Forget(Phase phase, int bucket = 0, int chunk = 0);
  absl::Status PostLoss();
  void AddUp(int bucket);
  absl::Status PostReduce(int bucket);
  absl::Status PostGather(int bucket, int chunk, bool update_first = false);
  void ExpectGathers();

  // Work of the queue's thread.
  FlowPiece BeginPiece() const { return {trace_, observer_, order_.step}; }
  absl::Status SumLoss();
  absl::Status Reduce(int bucket, int chunk);
  absl::Status SumNorms();
  void Update(int bucket, int chunk);
  absl::Status GatherChunk(int bucket, int chunk, bool update_first);
  absl::Status AfterReduce(int bucket, int chunk);
  void ForgetGathers();

  // Runs the wait, counts and traces it.
  absl::Status Waited(const char* for_what, const std::function<absl::Status()>& wait);

  const Plan& plan_;
  ParameterStore& parameters_;
  std::vector<SliceOptimizer>& optimizers_;
  StepNorms& norms_;
  MeshCommunicators& comms_;
  const bool overlap_;
  const BucketTable table_;
  Trace* trace_ = nullptr;
  FlowObserver* observer_ = nullptr;
  int64_t step_ = 0;
  double seconds_waited_ = 0;

  struct Order {
    float rate = 0;
    bool gather = false;
    int64_t step = 0;
  };
  // The step that the rank's own thread is in. Of the step before, much may still be under way
  // until forward has waited for all weights.
  Order asked_;
  bool first_pass_ = true;
  bool last_pass_ = false;
  // Layers that backward still has to pass, by bucket; posted when none.
  std::vector<int> layers_left_;
  std::vector<bool> posted_;

  // Of the queue's thread. The rank's own sets some of them when forward is done and before it
  // posts anything, and reads others after a wait for what wrote them.
  Order order_;
  LossPart mine_;
  LossPart group_;
  bool finite_ = true;
  int chunks_to_reduce_ = 0;

  // Null for a rank that is alone. Last, so that its thread ends first.
  std::unique_ptr<CollectiveQueue> queue_;
};

}  // namespace cadre
