// What a rank's training steps are made of, in seconds: its layers as it has them, its moves, and
// what its communication thread does. The probe of a cluster and the status of a run are both made
// of it.
//
//   StepProfile profile(replica);
//   CADRE_RETURN_IF_ERROR(profile.Start());
//   for (...) {
//     replica.set_step(step);
//     profile.BeginStep(step);
//     ... replica.Step(...) ...
//     profile.EndStep();
//   }
//   CADRE_RETURN_IF_ERROR(profile.Stop());
//   *measured.mutable_layers() = profile.Layers();
//
// A layer's time is its computing alone: the sums that a norm takes over the ranks while it
// computes are counted as moves. What is not between BeginStep and EndStep is not counted.
//
// On devices the host stands still around every operation while it looks, so that what would have
// overlapped is seen one by one, and a step takes longer than others. The host does not see how
// long data travels in the transport: norms' sums over the ranks count as their layers' computing,
// and no copying is told apart from moves. Nor is it known what a step would have waited for; that
// is left unset.
//
// Borrows the replica; between Start or Resume and Stop it is the observer of its network and its
// flow. Thread-compatible: the rank's own thread. Keeps some numbers for every step and layer.
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
  // Seconds of a step.
  struct BucketSeconds {
    double reduce = 0;
    double update = 0;
    double gather = 0;
  };

  explicit StepProfile(Replica& replica);
  ~StepProfile() override;
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Forgets what was seen, and looks from now on. Settles the replica. Errors: the replica's.
  absl::Status Start();
  // Looks on, after a Stop. Settles the replica. Errors: the replica's.
  absl::Status Resume();
  // Around a call of Replica::Step; `step` as in Replica::set_step. Steps that are done again, from
  // an earlier one on, replace what was seen of them. Requires: steps go back only when settled.
  void BeginStep(int64_t step);
  void EndStep();
  // Looks no more. Settles the replica. Errors: the replica's.
  absl::Status Stop();

  int steps() const { return static_cast<int>(steps_.size()); }

  // ---- Medians over the steps. Requires: stopped.

  // One entry for each layer and size of micro-batch. Of the rank that has most to do: where a
  // layer is cut unevenly and this rank has less, in proportion. Layers of which this rank has
  // nothing are left out.
  v1::ModelTimes Layers() const;
  v1::StepTimes Times() const;
  // By bucket of the plan.
  std::vector<BucketSeconds> Buckets() const;
  // Of one parameter that this rank owns; 0: it owns none.
  double UpdateSeconds() const;
  // To copy a word of activations into a message, out of one, or beside one; 0: no move copied any,
  // or on a device, where it is not known.
  double CopySeconds() const;

  void Played(const Tape& tape, const TapeOp& op, absl::Time begin, double seconds) override;
  void Waited(double seconds) override;
  void Done(Part part, int64_t step, int bucket, double seconds) override
      ABSL_LOCKS_EXCLUDED(mutex_);

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
    // Of moves that nothing was computed beside, without their time in the transport.
    double copying = 0;
    double copied_words = 0;
    // By samples of the pass, over all ranks.
    std::map<int64_t, PassSums> passes;
  };
  struct FlowSums {
    double collectives = 0;
    double update = 0;
    std::vector<BucketSeconds> buckets;
  };

  // Steps from this one on.
  void Forget(int64_t from) ABSL_LOCKS_EXCLUDED(mutex_);
  // Seconds in the transport since it was last asked; 0 on devices, where calls only enqueue.
  double TakeTransportSeconds();
  void AddMove(const TapeOp& op, double seconds, double in_transport);
  void CountCopies();
  void AddWork(const Tape& tape, const TapeOp& op, double seconds);
  // Of each step, in its order; a step of which nothing was heard has zeros.
  std::vector<FlowSums> Flows() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What the rank with the largest part of a layer has, by what this rank has; 0: it has nothing.
  double LargestByOwn(int layer, int64_t samples) const;

  Replica& replica_;
  const SteadyClock clock_;
  bool looking_ = false;
  // Between BeginStep and EndStep.
  bool in_step_ = false;
  std::vector<StepSums> steps_;
  absl::Time began_;
  double waited_before_ = 0;
  double transport_before_ = 0;
  // Of the move that was told last, until it is known that nothing was computed beside it.
  double copying_ = 0;
  double copied_words_ = 0;

  mutable absl::Mutex mutex_;
  // By step; those that were begun before the first are among them.
  std::map<int64_t, FlowSums> flows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
