#include "group/handoff.h"

#include <utility>

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

absl::Status Handoff::AwaitIdle() {
  while (!cancelled_ && (due_ || doing_ || !waiting_)) {
    changed_.WaitFor(mutex_, absl::InfiniteDuration(),
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                       return cancelled_ || (!due_ && !doing_ && waiting_);
                     });
  }
  return cancelled_ ? absl::CancelledError("the group was released") : absl::OkStatus();
}

absl::Status Handoff::AwaitProgram() {
  absl::MutexLock lock(&mutex_);
  return AwaitIdle();
}

absl::Status Handoff::Do(Task task, uint32_t step, uint32_t until) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status idle = AwaitIdle(); !idle.ok()) return idle;
  if (task == Task::kTrain) {
    step_ = step;
    until_ = until;
  }
  due_ = task;
  changed_.NotifyAll();
  return AwaitIdle();
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

void Handoff::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
  changed_.NotifyAll();
}

}  // namespace cadre
