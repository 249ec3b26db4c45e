#include "worker/comm/background_task.h"

#include <utility>

#include "glog/logging.h"

namespace cadre {

BackgroundTask::BackgroundTask() : thread_([this] { Run(); }) {}

BackgroundTask::~BackgroundTask() {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BackgroundTask::IsIdle));
    stopping_ = true;
  }
  thread_.join();
}

void BackgroundTask::Start(std::function<absl::Status()> work) {
  absl::MutexLock lock(&mutex_);
  CHECK(work_ == nullptr) << "the previous task has not been waited for";
  work_ = std::move(work);
}

absl::Status BackgroundTask::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BackgroundTask::IsIdle));
  return outcome_;
}

void BackgroundTask::Run() {
  while (true) {
    std::function<absl::Status()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &BackgroundTask::HasWork));
      if (stopping_) return;
      work = work_;
    }
    absl::Status outcome = work();
    absl::MutexLock lock(&mutex_);
    outcome_ = std::move(outcome);
    work_ = nullptr;
  }
}

}  // namespace cadre
