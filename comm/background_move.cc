// On the host, a move spends its time in system calls and copies, so a separate thread overlaps it
// with the kernels. On a device, moves are enqueued like kernels, and a separate stream runs them
// concurrently: `fork_` orders the move after earlier work, `join_` orders later work after it.
#include "comm/background_move.h"

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"

namespace cadre {
namespace {

// The thread sleeps between moves.
class HostMove final : public BackgroundMove {
 public:
  ~HostMove() override {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &HostMove::IsIdle));
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  void Start(std::function<absl::Status()> move) override {
    absl::MutexLock lock(&mutex_);
    CHECK(move_ == nullptr) << "the previous move has not been waited for";
    move_ = std::move(move);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  absl::Status Wait() override {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &HostMove::IsIdle));
    return status_;
  }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    while (true) {
      std::function<absl::Status()> move;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &HostMove::HasWork));
        if (stopping_) return;
        move = move_;
      }
      absl::Status status = move();
      absl::MutexLock lock(&mutex_);
      status_ = std::move(status);
      move_ = nullptr;
    }
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !IsIdle(); }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return move_ == nullptr; }

  absl::Mutex mutex_;
  std::function<absl::Status()> move_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Created on first use, because most ranks overlap no moves.
  std::thread thread_;
};

class DeviceMove final : public BackgroundMove {
 public:
  explicit DeviceMove(Device& device)
      : device_(device), fork_(device.MakeEvent()), join_(device.MakeEvent()) {}

  void Start(std::function<absl::Status()> move) override {
    device_.Record(*fork_);
    const OnStream moves(device_, Stream::kMoves);
    device_.WaitFor(*fork_);
    status_ = move();
    device_.Record(*join_);
  }
  // Waits also after an error, so that memory is not freed while the stream for moves uses it.
  absl::Status Wait() override {
    device_.WaitFor(*join_);
    return status_;
  }

 private:
  Device& device_;
  const std::unique_ptr<DeviceEvent> fork_;
  const std::unique_ptr<DeviceEvent> join_;
  absl::Status status_;
};

}  // namespace

std::unique_ptr<BackgroundMove> BackgroundMove::Make(Device& device) {
  if (device.is_host()) return std::make_unique<HostMove>();
  return std::make_unique<DeviceMove>(device);
}

}  // namespace cadre
