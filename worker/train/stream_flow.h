// The way of gradients to weights on a device: everything is enqueued by the rank's own thread, on
// the lane for communication, between events.
//
//   loss known                          -> sum over the group -> pinned memory (AwaitLoss)
//   backward done with a bucket's layers -> reduce-scatter -> update -> (mirror on the host)
//   the next forward                     -> all-gathers, in the order in which it needs them
//
// Collectives are enqueued in the order in which backward finishes buckets and forward needs them.
// That order is the tape's, and the ranks of a group play equal tapes, so it is the same on all of
// them without a word. A slice is updated only where the group's loss is finite, which the kernel
// reads from the device's memory: the host learns the loss (the one wait of a step) while backward
// still runs, and decides nothing by it. LARS, whose rates the host computes from norms, waits once
// more a step.
//
// All-gathers are left to the next forward, whoever asks for it, so that a forward with what it
// waits for is one piece of work that can be recorded. See step_recorder.h; Enter to Leave are for
// it.
//
// Without overlap the lane for computing waits for all that follows backward, gathers included.
//
// Borrows all. Thread-compatible: the rank's own thread, on the device's lane for computing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "worker/comm/mesh_communicators.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/optim/step_norms.h"
#include "worker/train/bucket_parts.h"
#include "worker/train/flow_piece.h"
#include "worker/train/gradient_flow.h"
#include "worker/train/lane_mark.h"
#include "worker/train/slice_mirror.h"

namespace cadre {

class StreamFlow final : public GradientFlow {
 public:
  // Requires: one optimiser and one mirrored slice per bucket; the comms are of the data.
  StreamFlow(const Plan& plan, const ParameterIndex& index, ParameterStore& parameters,
             std::vector<SliceOptimizer>& optimizers, StepNorms& norms, const SliceMirror& mirror,
             MeshCommunicators& comms, Kernels& kernels, bool overlap);

  // Without `gather` the updated slices are copied to the mirror, too, beside the rest of the step.
  void BeginStep(float rate, bool gather, int64_t labels) override;
  void BeginLastPass() override { progress_.last_pass = true; }
  void EndPass() override;
  absl::Status EndStep() override;
  absl::StatusOr<LossPart> AwaitLoss() override;
  void Fail(const absl::Status& reason) override;
  absl::Status Gather() override;
  absl::Status Settle() override;

  absl::Status BeforeForward(int layer) override;
  absl::Status AfterLoss(std::span<const double> sums, int64_t counted) override;
  absl::Status AfterBackward(int layer) override;

  double seconds_waited() const override { return 0; }
  void set_trace(Trace* trace) override { trace_ = trace; }
  void set_observer(FlowObserver* observer) override { observer_ = observer; }
  void set_step(int64_t step) override { step_ = step; }

  // --- for recordings ----------------------------------------------------------------------------
  // What decides, besides shapes, what a pass enqueues here, and what it leaves behind.
  struct Progress {
    bool gather = false;
    bool first_pass = true;
    bool last_pass = false;
    bool ended = true;
    // The owned slices are newer than what other ranks have of them.
    bool gathers_pending = false;
    // Layers that backward still has to pass, by bucket; posted when none.
    std::vector<int> layers_left;
    std::vector<bool> posted;
    friend bool operator==(const Progress&, const Progress&) = default;
  };
  const Progress& progress() const { return progress_; }
  void set_progress(Progress progress) { progress_ = std::move(progress); }
  // Whether passes can be recorded now: nobody watches (a trace may be there, but is not on), and
  // the host has no part in them.
  bool can_record() const;
  // The lane for computing is behind all that was enqueued here, which then needs no more events.
  void Enter();
  // Around what is recorded: the lane for communication belongs to it, too.
  void Fork();
  void Join();
  // What was recorded has been played on the lane for computing; the others are behind it.
  // `with_loss`: it had the loss of the step's last pass in it.
  void Leave(bool with_loss);

 private:
  int buckets() const { return static_cast<int>(table_.buckets.size()); }
  const BucketParts& parts(int b) const { return table_.buckets[static_cast<size_t>(b)]; }
  const Bucket& bucket(int b) const { return plan_.buckets[static_cast<size_t>(b)]; }
  SliceOptimizer& optimizer(int b) { return optimizers_[static_cast<size_t>(b)]; }
  LaneMark& ready(int b) { return ready_[static_cast<size_t>(b)]; }
  LaneMark& mirrored(int b) { return mirrored_[static_cast<size_t>(b)]; }
  // Gradients of the whole step, and of them and the weights what this rank owns.
  std::span<float> Gradients(int b);
  std::span<float> Slice(std::span<float> buffer, int b) const;
  // The current lane goes on behind what the lane for computing has been given.
  void AfterCompute();
  void ClearMarks();
  // Whether somebody looks at pieces now. A trace that is given but idle is nobody.
  bool watched() const;
  // For watchers: the device has done everything, where somebody watches.
  FlowPiece BeginPiece();
  void EndPiece(const FlowPiece& piece, FlowPiece::Part part, int64_t bytes, const char* what,
                int b = -1);

  // All on the lane for communication.
  absl::Status PostLoss();
  absl::Status PostReduce(int b);
  absl::Status AfterReduce(int b);
  absl::Status SumNorms();
  // LARS: the norms as the host sees them. Stands still.
  absl::Status FetchNorms();
  void Update(int b);
  absl::Status EnqueueGathers();
  absl::Status GatherBucket(int b);

  const Plan& plan_;
  ParameterStore& parameters_;
  std::vector<SliceOptimizer>& optimizers_;
  StepNorms& norms_;
  const SliceMirror& mirror_;
  MeshCommunicators& comms_;
  Kernels& kernels_;
  Device& device_;
  const bool overlap_;
  const BucketTable table_;
  // Buckets in the order in which forward needs them.
  std::vector<int> forward_order_;

  // Loss and correct answers: of this rank's passes; of the group; as the host sees the latter.
  DeviceArray<double> mine_;
  DeviceArray<double> group_;
  PinnedArray<double> seen_;
  // As StepNorms has them: on the device, and where LARS looks at them on the host.
  DeviceArray<double> squares_;
  PinnedArray<double> squares_seen_;

  Trace* trace_ = nullptr;
  FlowObserver* observer_ = nullptr;
  int64_t step_ = 0;
  float rate_ = 0;
  int64_t labels_ = 0;
  Progress progress_;
  absl::Status failed_;

  // The group's loss is in pinned memory, LARS' norms are; this rank's part has been taken.
  LaneMark loss_known_;
  LaneMark norms_known_;
  LaneMark loss_taken_;
  // What the lane for computing had been given, last.
  LaneMark computed_;
  // Ends of both lanes, for Enter, Fork, Join and Leave.
  LaneMark fork_;
  LaneMark join_;
  // By bucket: its weights are there for forward; its slice is in the mirror.
  std::vector<LaneMark> ready_;
  std::vector<LaneMark> mirrored_;
};

}  // namespace cadre
