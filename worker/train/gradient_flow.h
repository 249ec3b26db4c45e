// Executes the operations that turn the gradients of a step into new weights, bucket by bucket:
// reductions, updates and gathers. BucketSchedule decides which operation runs when
// (bucket_schedule.cc explains the idea). This base class drives the schedule and holds what does
// not depend on where operations run. ThreadFlow executes them on the host in a background thread;
// StreamFlow enqueues them on a stream of a device.
//
// Borrows everything in Context. Thread-compatible: only the rank's own thread calls it. Callers
// may read the borrowed objects only between AwaitOperations and the next step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/trace.h"
#include "comm/mesh_communicators.h"
#include "kernels/backend.h"
#include "plan/plan.h"
#include "worker/nn/network.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/optim/step_norms.h"
#include "worker/train/bucket_schedule.h"

namespace cadre {

// Receives the duration of every operation, on the thread that executes it. On devices the host
// synchronizes around each operation while there is an observer.
class FlowObserver {
 public:
  virtual ~FlowObserver() = default;
  // Called when `op` of step `step` has taken `seconds`. `op.bucket` is -1 for the sums of loss and
  // norms.
  virtual void Done(const BucketOp& op, int64_t step, double seconds) = 0;
};

class GradientFlow : public PassListener {
 public:
  // What the operations read and write. Requires: one optimizer per bucket.
  struct Context {
    const Plan& plan;
    const ParameterIndex& index;
    ParameterStore& parameters;
    std::vector<SliceOptimizer>& optimizers;
    StepNorms& norms;
    MeshCommunicators& comms;
    Backend& kernels;
    bool overlap = true;
  };

  // Starts a step; the caller then runs its passes and calls AwaitLoss. `gather`: all ranks get the
  // new weights; otherwise only the owners of the slices have them, until Gather. `labels`: number
  // of labels in the step's batches, over the group. Requires: AwaitOperations or Gather was called
  // after the step before, if that step did not gather.
  virtual void BeginStep(float rate, bool gather, int64_t labels);
  // The next forward pass is the step's last; the next backward pass is, and exchanges the
  // gradients that the passes have accumulated.
  void BeginLastForward() { schedule_.BeginLastForward(); }
  void BeginLastBackward() { schedule_.BeginLastBackward(); }
  // Called when backward of a pass is done.
  absl::Status EndPass();
  // Waits for the sum of the step's losses over the group. If it is not finite, no weight was
  // changed.
  virtual absl::StatusOr<LossPart> AwaitLoss() = 0;
  // Called when the step has failed on the rank's own thread, which starts no more operations.
  virtual void Fail(const absl::Status& reason) = 0;
  // Starts to gather all owned slices; the next forward waits for them.
  virtual absl::Status Gather();
  // Returns when every operation that was started is done. Not a collective.
  virtual absl::Status AwaitOperations() = 0;

  absl::Status BeginForward() override { return Start(schedule_.BeginForward()); }
  absl::Status BeforeForward(int layer) override;
  absl::Status AfterLoss(std::span<const double> sums, int64_t counted) override;
  absl::Status AfterForwards() override;
  absl::Status AfterBackward(int layer) override { return Start(schedule_.AfterBackward(layer)); }

  // Seconds that the rank's own thread has waited for operations. 0 on devices, because the host
  // cannot observe such waits; that 0 must not be reported as a measurement.
  double seconds_waited() const { return seconds_waited_; }
  // Null: no trace. Requires: the trace outlives this object or is removed before; no operation
  // is running (see AwaitOperations).
  void set_trace(Trace* trace) { trace_ = trace; }
  // Null: no observer. Requires: as set_trace.
  void set_observer(FlowObserver* observer) { observer_ = observer; }
  // Number of the next step, for trace and observer.
  void set_step(int64_t step) { step_ = step; }
  // False: steps that do not gather leave the host's mirror as it is. Requires: no step was
  // started.
  void set_mirrors(bool on) { mirrors_ = on; }
  bool mirrors() const { return mirrors_; }

 protected:
  // `on_stream`: operations are enqueued on a stream. Buckets are then not cut into chunks, because
  // the stream carries nothing that is more urgent than the gathers; these are enqueued by the next
  // forward, in the order in which it needs them.
  GradientFlow(const Context& context, bool on_stream);

  // Starts the operations, in this order.
  virtual absl::Status Start(const BucketOps& ops) = 0;
  // Orders all later work of the rank after the gathers of the bucket.
  virtual absl::Status WaitForWeights(int bucket) = 0;
  // Orders all later work of the rank after all operations of the step.
  virtual absl::Status WaitForStep() = 0;
  virtual void ResetLoss() = 0;
  virtual void AddLoss(std::span<const double> sums, int64_t counted) = 0;
  // Sums over the group; each returns the number of bytes that it summed.
  virtual absl::StatusOr<int64_t> SumLoss() = 0;
  virtual absl::StatusOr<int64_t> SumNorms() = 0;
  virtual void Update(const BucketOp& op) = 0;

  // Executes one operation, and measures it if there is an observer or a trace.
  absl::Status Execute(const BucketOp& op);
  // If the step has several passes, adds the gradients of the last one to the sums of the others.
  void Accumulate(int bucket);
  // Adds the statistics of the last forward pass, which the next one may overwrite before backward.
  void AccumulateStatistics();
  // This rank's slice of a bucket: gradients of the whole step, and weights.
  std::span<float> GradientSlice(int bucket);
  std::span<float> WeightSlice(int bucket);
  int buckets() const { return std::ssize(table_.buckets); }
  // Whether there is an observer, or a trace that is on.
  bool watched() const { return observer_ != nullptr || (trace_ != nullptr && trace_->on()); }

  const Plan& plan_;
  ParameterStore& parameters_;
  std::vector<SliceOptimizer>& optimizers_;
  StepNorms& norms_;
  MeshCommunicators& comms_;
  Backend& kernels_;
  Device& device_;
  const BucketTable table_;
  BucketSchedule schedule_;
  Trace* trace_ = nullptr;
  bool mirrors_ = true;
  double seconds_waited_ = 0;

  struct Step {
    int64_t number = 0;
    float rate = 0;
    int64_t labels = 0;
  };
  // The step that the rank's own thread executes.
  Step next_;
  // The step whose operations execute. It is the step before next_ until forward has waited for the
  // weights of that step.
  Step current_;

 private:
  absl::StatusOr<int64_t> Run(const BucketOp& op);
  std::span<float> Gradients(int bucket);
  void Report(const BucketOp& op, absl::Time begin, int64_t bytes);

  // Where running statistics are, in the buffers of a bucket.
  struct Statistic {
    int bucket = 0;
    Interval elements;
  };

  std::vector<Statistic> statistics_;
  FlowObserver* observer_ = nullptr;
  int64_t step_ = 0;
};

}  // namespace cadre
