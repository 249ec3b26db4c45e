// Trains in the generations of a group by having a program do the steps with a loop of its own: the
// values are those that the program has registered, and a Handoff passes to the program what
// is due.
//
// Thread-safe, except for Train.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "group/caller_report.h"
#include "group/caller_values.h"
#include "group/handoff.h"
#include "group/step_times.h"
#include "member/group_member.h"
#include "member/rank_protocol.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tensor/interval.h"

namespace cadre {

// Where a program's training stands. Copied under a mutex when a version is adopted.
struct ProgramState {
  std::string run;
  uint32_t version = 0;
  uint64_t digest = 0;
  uint32_t participants = 0;
  bool included = false;
  uint32_t next_boundary = 0;
  uint32_t total_steps = 0;
  uint32_t group = 0;
  uint32_t batch = 0;
  v1::SampleDivision division;
  uint64_t discarded_steps = 0;
  // Test samples of the evaluation that is due.
  Interval evaluate;
};

class CallerTrainer final : public GenerationTrainer {
 public:
  // Borrows `handoff` and `parameters`. `test_samples`: those that the program evaluates.
  CallerTrainer(const v1::Reservation& reservation, const std::vector<CallerParameter>& parameters,
                uint64_t test_samples, Handoff& handoff)
      : reservation_(reservation),
        parameters_(parameters),
        test_samples_(test_samples),
        handoff_(handoff) {}

  void Describe(v1::Hello& hello) const override;
  Result Train(GroupSession& session, const MemberLoopOptions& options,
               Counters& counters) override;
  void OnRunEnded(const v1::RunEnded& ended) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWaiting(const v1::Waiting& waiting) override ABSL_LOCKS_EXCLUDED(mutex_);

  ProgramState state() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Why the program cannot continue, or OK.
  absl::Status error() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What the program reports of its training. A loss that is not finite does not end it, because
  // the weights are checked at the boundary.
  CallerReport& report() { return report_; }
  // Whether the ranks have agreed on the step at which the program's loop has ended.
  bool agreed_on_end() const { return agreed_on_end_; }
  // Whether the run has ended for this program.
  bool run_ended() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What the program waits for before its group is formed; empty if it is not known.
  std::string awaited() const ABSL_LOCKS_EXCLUDED(mutex_);

  // From the program's thread: it has made progress.
  void Advance() {
    if (TrainerProgress* const progress = progress_.load()) progress->Advance();
  }
  // From the program's thread: it begins to train, or has done a step.
  void OnTrain() { step_times_.Begin(steady_.Now()); }
  void OnStep() {
    step_times_.Step(steady_.Now());
    Advance();
  }
  // The result of the evaluation that is due.
  void SetEvaluated(const RankProtocol::Evaluated& evaluated) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class CallerModel;

  const v1::Reservation reservation_;
  const std::vector<CallerParameter>& parameters_;
  const uint64_t test_samples_;
  Handoff& handoff_;
  // That of the member, once a generation has begun.
  std::atomic<TrainerProgress*> progress_ = nullptr;
  // Whether the ranks have compared the values with which the program began. Used by the runner.
  bool checked_first_values_ = false;
  std::atomic<bool> agreed_on_end_ = false;
  CallerReport report_;
  const SteadyClock steady_;
  StepTimes step_times_;

  mutable absl::Mutex mutex_;
  ProgramState state_ ABSL_GUARDED_BY(mutex_);
  // Steps of Handoff::trained that a version has, or later contributions carry, or that are
  // discarded.
  uint64_t accounted_ ABSL_GUARDED_BY(mutex_) = 0;
  bool run_ended_ ABSL_GUARDED_BY(mutex_) = false;
  RankProtocol::Evaluated evaluated_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::string awaited_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
