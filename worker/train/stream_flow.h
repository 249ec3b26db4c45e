// GradientFlow on a device: the rank's own thread enqueues everything, on the stream for
// communication, between events.
//
//   AfterLoss               sum of the loss -> pinned memory (AwaitLoss)
//   AfterBackward           reduce-scatter -> update -> (copy of the slice to the host)
//   the next BeforeForward  all-gathers, in the order in which forward needs them
//
// A slice is updated only where the group's loss is finite, which the kernel reads from device
// memory: the host learns the loss (the one wait of a step) while backward still runs, and decides
// nothing by it. LARS, whose rates the host computes from norms, waits once more a step. Without
// overlap, the stream for computing waits for all that follows backward, gathers included.
//
// StepRecorder uses Enter, Fork, Join and Leave around what it records and plays.
//
// Threads: as GradientFlow; the caller's current stream is the one for computing.
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
  // Marks what the current stream has been given.
  void Set(Device& device) {
    if (event_ == nullptr) event_ = device.MakeEvent();
    device.Record(*event_);
    set_ = true;
  }
  // The current stream waits.
  void Wait(Device& device) const {
    if (set_) device.WaitFor(*event_);
  }
  // The host waits.
  absl::Status Await(Device& device) const {
    return set_ ? device.Await(*event_) : device.status();
  }
  // Later waits need not wait for what was marked.
  void Clear() { set_ = false; }

 private:
  std::unique_ptr<DeviceEvent> event_;
  bool set_ = false;
};

class StreamFlow final : public GradientFlow {
 public:
  // Requires: one slice of `mirror` per bucket.
  StreamFlow(const Setting& setting, const SliceMirror& mirror);

  // Without `gather` the updated slices are also copied to the mirror, concurrently with backward.
  void BeginStep(float rate, bool gather, int64_t labels) override;
  absl::StatusOr<LossPart> AwaitLoss() override;
  void Fail(const absl::Status& reason) override;
  absl::Status Settle() override;

  // --- for recordings ----------------------------------------------------------------------------
  BucketSchedule& schedule() { return schedule_; }
  // Whether passes can be recorded now: they are not watched, and the host takes no part in them.
  bool can_capture() const { return !watched() && !norms_.by_tensor(); }
  // Orders the stream for computing behind all that was enqueued here; no event is needed for that
  // work any more.
  void Enter();
  // At the start and at the end of what is recorded: makes the stream for communication part of it.
  void Fork();
  void Join() { Enter(); }
  // After a recording was played on the stream for computing: orders the stream for communication
  // behind it. `with_loss`: it contained the loss of the step's last pass.
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

  // Enqueues `op` and what follows, on the current stream.
  absl::Status Perform(const BucketOp& op);
  // LARS: copies the norms to the host. Blocks until they are there.
  absl::Status FetchNorms();
  void MirrorSlice(int bucket);
  // Reports to the kernels which weights of the bucket a gather has changed.
  void ReportGathered(int bucket);
  // The current stream waits for what the stream for computing has been given.
  void AfterCompute();
  void ClearMarks();

  const SliceMirror& mirror_;
  // Loss and number of correct answers: this rank's sums, the group's, and the latter on the host.
  DeviceArray<double> mine_;
  DeviceArray<double> group_;
  PinnedArray<double> group_on_host_;
  // Laid out as StepNorms::sums(): on the device, and for LARS on the host.
  DeviceArray<double> squares_;
  PinnedArray<double> squares_on_host_;
  absl::Status failed_;

  // group_on_host_ is valid; squares_on_host_ is; mine_ was copied and may be overwritten.
  EventMark loss_known_;
  EventMark norms_known_;
  EventMark loss_taken_;
  // The latest AfterCompute.
  EventMark computed_;
  // Ends of both streams, for Enter, Fork and Leave.
  EventMark fork_;
  EventMark join_;
  // By bucket: its weights are ready for forward; its slice is in the mirror.
  std::vector<EventMark> ready_;
  std::vector<EventMark> mirrored_;
};

}  // namespace cadre
