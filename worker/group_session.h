// One assignment of this worker, between the thread that trains and the thread that hears the
// coordinator.
//
// The training thread calls the GroupControl side; the membership thread delivers. What the trainer
// says goes out through the outlet, which is called on the training thread.
//
// Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/cancellation.h"
#include "worker/train/group_control.h"

namespace cadre {

class GroupSession final : public GroupControl {
 public:
  // How the trainer's words reach the coordinator.
  struct Outlet {
    std::function<void(const v1::Prepared&)> prepared;
    std::function<void(const v1::Progress&)> progress;
    std::function<void(const v1::Measured&)> measured;
    std::function<void(const v1::Contributed&)> contributed;
    std::function<void(const v1::Adopted&)> adopted;
    std::function<void(const v1::Evaluated&)> evaluated;
    std::function<void(const v1::Traced&)> traced;
    std::function<bool()> connected;
  };

  GroupSession(v1::Assignment assignment, Outlet outlet);

  const v1::Assignment& assignment() const { return assignment_; }
  Cancellation& cancellation() { return cancellation_; }

  // From the membership thread.
  void Deliver(const v1::Start& start) ABSL_LOCKS_EXCLUDED(mutex_);
  void Deliver(const v1::Decision& decision) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the place of a request that was not taken yet: nobody waits for that one any more.
  void Deliver(const v1::TraceSteps& trace) ABSL_LOCKS_EXCLUDED(mutex_);
  void MoveShards(const v1::ShardAddresses& shards) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends everything that waits, with Cancelled.
  void Cancel(const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // GroupControl, from the training thread.
  absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared& prepared) override;
  void Report(const v1::Progress& progress) override;
  void Measured(const v1::Measured& measured) override;
  void Contribute(const v1::Contributed& contributed) override;
  absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration patience) override;
  void Adopted(const v1::Adopted& adopted) override;
  void Evaluated(const v1::Evaluated& evaluated) override;
  std::optional<v1::TraceSteps> TakeTraceRequest() override;
  void Traced(const v1::Traced& traced) override;
  bool connected() const override { return outlet_.connected(); }
  std::string ShardAddress(uint32_t shard) const override;

 private:
  bool StartedOrCancelled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return start_.has_value() || cancelled_;
  }
  bool DecidedOrCancelled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !decisions_.empty() || cancelled_;
  }

  const v1::Assignment assignment_;
  const Outlet outlet_;
  Cancellation cancellation_;

  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<v1::Start> start_ ABSL_GUARDED_BY(mutex_);
  // At most one answer and the evaluation parts of a run's end wait here.
  std::deque<v1::Decision> decisions_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::TraceSteps> trace_ ABSL_GUARDED_BY(mutex_);
  // The request that is being answered. 0: none.
  uint64_t tracing_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, std::string> shards_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
