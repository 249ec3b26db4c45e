#include "group/handoff.h"

#include <utility>

#include "base/status.h"

namespace cadre {

void Handoff::Begin() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = false;
}

void Handoff::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  due_.reset();
  // A program that trains notices the end at its next step.
  if (!finishes_) until_ = 0;
  changed_.NotifyAll();
}

absl::StatusOr<bool> Handoff::AwaitIdle(absl::Duration timeout) {
  changed_.WaitFor(mutex_, timeout,
                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return cancelled_ || idle(); });
  if (cancelled_) return absl::CancelledError("the group was released");
  return idle();
}

absl::Status Handoff::AwaitProgram() {
  absl::MutexLock lock(&mutex_);
  return AwaitIdle(absl::InfiniteDuration()).status();
}

absl::Status Handoff::Assign(Task task, uint32_t step, uint32_t until) {
  absl::MutexLock lock(&mutex_);
  CADRE_RETURN_IF_ERROR(AwaitIdle(absl::InfiniteDuration()).status());
  if (task == Task::kTrain) {
    before_ = trained() - step;
    step_ = step;
    until_ = until;
  }
  due_ = task;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<bool> Handoff::AwaitDone(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  changed_.WaitFor(mutex_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return cancelled_ || idle() || woken_;
  });
  woken_ = false;
  return AwaitIdle(absl::ZeroDuration());
}

absl::Status Handoff::Do(Task task) {
  CADRE_RETURN_IF_ERROR(Assign(task));
  return AwaitProgram();
}

void Handoff::End() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  if (!finishes_) until_ = 0;
  changed_.NotifyAll();
}

Handoff::Task Handoff::Next(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  doing_.reset();
  waiting_ = true;
  changed_.NotifyAll();
  changed_.WaitFor(mutex_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return due_ || ended_ || interrupted_;
  });
  interrupted_ = false;
  // A program that finds nothing to do stays idle: it calls Next again, and touches no values.
  if (due_) {
    waiting_ = false;
    doing_ = std::exchange(due_, std::nullopt);
    return *doing_;
  }
  return ended_ ? Task::kEnded : Task::kWait;
}

void Handoff::EndLoop() {
  absl::MutexLock lock(&mutex_);
  loop_ended_ = true;
}

bool Handoff::loop_ended() const {
  absl::MutexLock lock(&mutex_);
  return loop_ended_;
}

void Handoff::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void Handoff::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
  changed_.NotifyAll();
}

}  // namespace cadre
