// The GradientFlow (gradient_flow.h) of ranks that compute on a device: the rank's own thread
// enqueues the bucket operations of a step on the communication stream, and events order them with
// the compute stream. What follows each hook of PassListener (worker/nn/network.h):
//
// clang-format off
//   AfterForwards           sum of the loss -> pinned memory (AwaitLoss)
//   AfterBackward           reduce-scatter -> update -> (copy of the slice to the host)
//   EndPass                 with norms: sum of the norms -> the updates
//   the next BeginForward   all-gathers, in the order in which forward needs them
// clang-format on
//
// A slice is updated only if the group's loss is finite, which the update kernel reads from device
// memory. The host only reports the loss: it waits for it once per step, while backward still runs.
// With LARS the host waits a second time, because it computes the learning rates from norms.
// Without overlap, the compute stream waits for everything that follows backward, gathers included.
//
// StepRecorder calls Enter, Fork, Join and Leave around the passes that it captures and replays.
//
// Threads: as GradientFlow; the caller's current stream is the compute stream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/device.h"
#include "worker/train/gradient_flow.h"
#include "worker/train/owned_slices.h"

namespace cadre {

// An event that may not have been recorded yet; waits then return immediately.
class EventMark {
 public:
  // Marks all work enqueued so far on the current stream.
  void Set(Device& device) {
    if (event_ == nullptr) event_ = device.MakeEvent();
    device.Record(*event_);
    set_ = true;
  }
  // Makes the current stream wait for the marked work.
  void Wait(Device& device) const {
    if (set_) device.WaitFor(*event_);
  }
  // Blocks the host until the marked work is done.
  absl::Status Await(Device& device) const {
    return set_ ? device.Await(*event_) : device.status();
  }
  // Removes the mark: later waits return immediately.
  void Clear() { set_ = false; }

 private:
  std::unique_ptr<DeviceEvent> event_;
  bool set_ = false;
};

class StreamFlow final : public GradientFlow {
 public:
  // `mirror`: the host's pinned copies of the owned slices (owned_slices.h), one per bucket.
  StreamFlow(const Context& context, const SliceMirror& mirror);

  // Without `gather` the updated slices are also copied to the mirror, concurrently with backward,
  // unless that is off (set_mirrors).
  void BeginStep(float rate, bool gather, int64_t labels) override;
  absl::StatusOr<LossPart> AwaitLoss() override;
  void Fail(const absl::Status& reason) override;
  absl::Status AwaitOperations() override;

  // --- for StepRecorder --------------------------------------------------------------------------
  BucketSchedule& schedule() { return schedule_; }
  // Whether passes can be captured now: no observer or trace is on, and the host takes no part in
  // them (as it does with norms per tensor, for LARS).
  bool can_capture() const { return !watched() && !norms_.by_tensor(); }
  // Makes the compute stream wait for everything enqueued so far on the communication stream, and
  // clears the marks of that work.
  void Enter();
  // Called when a capture starts: joins the communication stream into the capture.
  void Fork();
  // Called before a capture ends: orders the compute stream after the communication stream.
  void Join() { Enter(); }
  // Called after a captured graph was launched on the compute stream: makes the communication
  // stream wait for it. `with_loss`: the graph contained the loss of the step's last pass.
  void Leave(bool with_loss);

 private:
  absl::Status Start(const BucketOps& ops) override;
  absl::Status WaitForWeights(int bucket) override;
  absl::Status WaitForStep() override;
  void ResetLoss() override;
  void AddLoss(std::span<const double> sums, int64_t counted) override;
  absl::StatusOr<int64_t> SumLoss() override;
  absl::StatusOr<int64_t> SumNorms() override;
  void Update(const BucketOp& op) override;

  // Enqueues `op` and the operations that follow it on the current stream.
  absl::Status Perform(const BucketOp& op);
  // For LARS: copies the norms to the host, and blocks until the copy is done.
  absl::Status FetchNorms();
  // Copies the updated slice of the bucket to the mirror.
  void MirrorSlice(int bucket);
  // Reports to the kernels which weights of the bucket a gather has changed.
  void ReportGathered(int bucket);
  // Makes the current stream wait for all work enqueued so far on the compute stream.
  void AfterCompute();
  void ClearMarks();

  const SliceMirror& mirror_;
  // Loss and number of correct answers: this rank's sums, the group's sums, and the group's sums on
  // the host.
  DeviceArray<double> mine_;
  DeviceArray<double> group_;
  PinnedArray<double> group_on_host_;
  // Laid out as StepNorms::sums(): on the device, and for LARS on the host.
  DeviceArray<double> squares_;
  PinnedArray<double> squares_on_host_;
  absl::Status failed_;

  // group_on_host_ is valid.
  EventMark loss_known_;
  // squares_on_host_ is valid.
  EventMark norms_known_;
  // mine_ was copied and may be overwritten.
  EventMark loss_taken_;
  // The work that the latest AfterCompute waits for.
  EventMark computed_;
  // The ends of the two streams, for Enter, Fork and Leave.
  EventMark fork_;
  EventMark join_;
  // By bucket: the weights are ready for forward.
  std::vector<EventMark> ready_;
  // By bucket: the slice is in the mirror.
  std::vector<EventMark> mirrored_;
};

}  // namespace cadre
