// The session of one assignment of this worker: passes messages between the training thread and the
// membership thread.
//
// The training thread calls the GroupControl methods; the membership thread delivers messages of
// the coordinator. Reports of the trainer go to the member, on the training thread.
//
// Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "member/assignment.h"
#include "member/cancellation.h"
#include "member/group_control.h"
#include "member/runtime.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// The member to which a session belongs.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // Sends a report of the trainer to the coordinator.
  virtual void Report(const TrainingReport& report) = 0;
  // Whether the coordinator is reachable.
  virtual bool connected() const = 0;
  // The session of a draining worker has reached its boundary.
  virtual void OnMayLeave() {}
};

class GroupSession final : public GroupControl {
 public:
  // Borrows the owner and the runtime.
  GroupSession(v1::Assignment assignment, SessionOwner& owner, Runtime& runtime);

  const v1::Assignment& assignment() const { return assignment_; }
  Cancellation& cancellation() { return cancellation_; }
  const Cancellation& cancellation() const { return cancellation_; }

  // From the membership thread.
  void Deliver(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // The group's next contribution is the last one for this worker, which ends after `within`. Of
  // several calls the earliest end counts.
  void Drain(absl::Duration within) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all waits with Cancelled.
  void Cancel(const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // GroupControl, from the training thread.
  absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared& prepared) override;
  void Send(const TrainingReport& report) override;
  absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration patience) override;
  bool nudged(uint32_t round) const override;
  std::optional<absl::Duration> leaves_within() const override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LeaveIfDraining() override;
  std::optional<v1::TraceSteps> TakeTraceRequest() override;
  bool connected() const override { return owner_.connected(); }
  ShardLocation LocationOf(uint32_t shard) const override ABSL_LOCKS_EXCLUDED(mutex_);
  bool ShardIsAway(uint32_t shard) const override ABSL_LOCKS_EXCLUDED(mutex_);
  void HandleRestage(std::function<void(const v1::Restage&)> handler) override;

 private:
  // Stores what the coordinator says of the shard.
  void SetShard(const v1::ShardAddress& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::Assignment assignment_;
  SessionOwner& owner_;
  const Clock& clock_;
  Cancellation cancellation_;

  mutable absl::Mutex mutex_;
  // Signaled when a start or a decision arrives and when the session is cancelled.
  const std::unique_ptr<WaitCondition> changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // When the worker ends, if it leaves.
  std::optional<absl::Time> leaves_at_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Start> start_ ABSL_GUARDED_BY(mutex_);
  // At most one answer to a contribution, and decisions that assign intervals to evaluate.
  std::deque<v1::Decision> decisions_ ABSL_GUARDED_BY(mutex_);
  // Newest round for which the others wait.
  uint32_t nudged_round_ ABSL_GUARDED_BY(mutex_) = 0;
  // A newer request replaces a pending one, for which the coordinator no longer waits.
  std::optional<v1::TraceSteps> trace_ ABSL_GUARDED_BY(mutex_);
  // Number of the request that is being traced; 0: none.
  uint64_t tracing_ ABSL_GUARDED_BY(mutex_) = 0;
  // Where the shards were last known to be, and the shards whose aggregators are away.
  std::map<uint32_t, ShardLocation> shards_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> away_ ABSL_GUARDED_BY(mutex_);
  // Null: requests are dropped, since the training has not begun or has ended.
  std::function<void(const v1::Restage&)> restage_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
