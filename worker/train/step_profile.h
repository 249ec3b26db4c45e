// The time of a rank's training steps by layer, move and operation of the gradient flow. Used by
// the cluster probe and by the status of a run. step_profile.cc has the method and its limits.
//
//   StepProfile profile(replica);
//   CADRE_RETURN_IF_ERROR(profile.Start());
//   for (...) {
//     replica.flow().set_step(step);
//     profile.BeginStep(step);
//     ... replica.Step(...) ...
//     profile.EndStep();
//   }
//   CADRE_RETURN_IF_ERROR(profile.Stop());
//   *measured.mutable_layers() = profile.Layers();
//
// Borrows the replica; between Start or Resume and Stop it is the observer of its network and flow.
// Thread-compatible: the rank's own thread. Memory grows with steps times layers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/cadre/v1/profile.pb.h"
#include "worker/nn/network.h"
#include "worker/train/gradient_flow.h"
#include "worker/train/replica.h"

namespace cadre {

class StepProfile final : public TapeObserver, public FlowObserver {
 public:
  explicit StepProfile(Replica& replica);
  ~StepProfile() override;
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Clears the profile and starts to observe. Waits for the replica's operations. Errors: the
  // replica's.
  absl::Status Start();
  // Continues after a Stop. Waits for the replica's operations. Errors: the replica's.
  absl::Status Resume();
  // Called around Replica::Step; `step` as in GradientFlow::set_step. A step with an earlier number
  // than the last one discards the profile from that number on; no operation of the replica may
  // then be running.
  void BeginStep(int64_t step);
  void EndStep();
  // Stops observing. Waits for the replica's operations. Errors: the replica's.
  absl::Status Stop();

  int steps() const { return std::ssize(steps_); }

  // ---- Medians over the steps. Requires: stopped.

  // One entry per layer and micro-batch size. If a layer is split unevenly, its entry is scaled to
  // the rank with the largest part. Layers of which this rank has no part are omitted.
  v1::ModelTimes Layers() const;
  v1::StepTimes Times() const;
  // Seconds to update one owned element; 0: this rank owns none.
  double UpdateSeconds() const;
  // Seconds to copy one element of activations into a message, out of a message, or locally. 0: no
  // move has copied an element, or the rank computes on a device, where this time is unknown.
  double CopySeconds() const;

  void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) override;
  void Waited(double seconds) override;
  void Done(const BucketOp& op, int64_t step, double seconds) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // By layer.
  struct PassSums {
    int passes = 0;
    std::vector<double> forward;
    std::vector<double> backward;
  };
  struct StepSums {
    int64_t step = 0;
    double seconds = 0;
    double compute = 0;
    double moves = 0;
    double exposed = 0;
    // Time of moves that overlapped with no computing, less their time in the transport.
    double copying = 0;
    double copied_elements = 0;
    // By samples of the pass over all ranks.
    std::map<int64_t, PassSums> passes;
  };
  struct FlowSums {
    double collectives = 0;
    double update = 0;
  };

  // Discards this step and later ones.
  void Forget(int64_t from) ABSL_LOCKS_EXCLUDED(mutex_);
  // Seconds in the transport since the last call; 0 on devices, where calls only enqueue.
  double TakeTransportSeconds();
  void AddMove(const TapeOp& op, double seconds, double in_transport);
  void CountCopies();
  void AddWork(const Tape& tape, const TapeOp& op, double seconds);
  // One entry per step, in order; zeros for steps without reports.
  std::vector<FlowSums> Flows() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Size of the layer's largest part over the ranks, divided by this rank's; 0: it has no part.
  double LargestByOwn(int layer, int64_t samples) const;

  Replica& replica_;
  const SteadyClock clock_;
  bool observing_ = false;
  // Between BeginStep and EndStep.
  bool in_step_ = false;
  std::vector<StepSums> steps_;
  absl::Time step_start_;
  double waited_before_ = 0;
  double transport_before_ = 0;
  // Copying of the latest move, until it is known that no computing overlapped with it.
  double copying_ = 0;
  double copied_elements_ = 0;

  mutable absl::Mutex mutex_;
  // By step number; may include steps before the first of steps_.
  std::map<int64_t, FlowSums> flows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
