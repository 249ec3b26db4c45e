// The way of gradients to weights, as the replica and the network see it: per bucket,
// reduce-scatter, update of the owned slice, all-gather, beside the rank's own computing.
//
// BucketFlow does it on the host, in a thread; StreamFlow enqueues it on a lane of a device.
//
// Thread-compatible: the rank's own thread calls. What it borrows may be looked at by others only
// between Settle and the next step.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace.h"
#include "worker/nn/network.h"

namespace cadre {

// Hears of what comes after backward, when it has been done; on the thread that does it. On devices
// the host stands still before and after each piece while somebody listens.
class FlowObserver {
 public:
  virtual ~FlowObserver() = default;
  // Of sums that are of no bucket (loss, norms) `bucket` is -1, and they are reductions.
  enum class Part : uint8_t { kReduce, kUpdate, kGather };
  // A piece of `step`'s work on a bucket took so long.
  virtual void Done(Part part, int64_t step, int bucket, double seconds) = 0;
};

class GradientFlow : public PassListener {
 public:
  // A step begins: its passes, EndStep, and AwaitLoss come next. `gather`: all ranks get the new
  // weights, too; otherwise only the owned slices hold them (until Gather). `labels`: of the step's
  // batches, over the group.
  // Requires: the step before is settled, or gathered.
  virtual void BeginStep(float rate, bool gather, int64_t labels) = 0;
  // The next pass is the step's last: what passes have added up travels then.
  virtual void BeginLastPass() = 0;
  // A pass that is not the last is done: its gradients are added up.
  virtual void EndPass() = 0;
  // Backward is done.
  virtual absl::Status EndStep() = 0;
  // The sum of the step's losses over the group. Where it is not finite no weight was changed.
  virtual absl::StatusOr<LossPart> AwaitLoss() = 0;
  // The step has failed on the rank's own thread: nothing of it will be posted any more.
  virtual void Fail(const absl::Status& reason) = 0;
  // Starts to gather the owned slices of all, at the latest when the next forward needs them.
  virtual absl::Status Gather() = 0;
  // Returns when nothing is under way: owned slices are updated, and all that was started is done.
  // No collective: a rank may settle by itself.
  virtual absl::Status Settle() = 0;

  // Seconds that the rank's own thread has waited here for what was not finished in the background.
  // On devices 0: it is the device that waits, unseen by the host; nobody may tell it as measured.
  virtual double seconds_waited() const = 0;
  // Null: nothing is traced. Requires: it outlives the flow or is taken back when settled.
  virtual void set_trace(Trace* trace) = 0;
  // As set_trace.
  virtual void set_observer(FlowObserver* observer) = 0;
  virtual void set_step(int64_t step) = 0;
};

}  // namespace cadre
