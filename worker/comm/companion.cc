#include "worker/comm/companion.h"

#include <utility>

#include "glog/logging.h"

namespace cadre {

Companion::Companion() : thread_([this] { Run(); }) {}

Companion::~Companion() {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Companion::IsIdle));
    stopping_ = true;
  }
  thread_.join();
}

void Companion::Start(std::function<absl::Status()> work) {
  absl::MutexLock lock(&mutex_);
  CHECK(work_ == nullptr) << "the piece before has not been waited for";
  work_ = std::move(work);
}

absl::Status Companion::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Companion::IsIdle));
  return outcome_;
}

void Companion::Run() {
  while (true) {
    std::function<absl::Status()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Companion::HasWork));
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
