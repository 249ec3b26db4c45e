// On the host, a move spends its time in system calls and copies, so a separate thread overlaps it
// with the kernels. On a device, moves are enqueued like kernels, and a separate stream runs them
// concurrently: `fork_` orders the move after earlier work, `join_` orders later work after it.
#include "worker/nn/background_move.h"

#include "worker/comm/background_task.h"

namespace cadre {
namespace {

class HostMove final : public BackgroundMove {
 public:
  void Start(const std::function<absl::Status()>& move) override {
    if (thread_ == nullptr) thread_ = std::make_unique<BackgroundTask>();
    thread_->Start(move);
  }
  absl::Status Wait() override { return thread_->Wait(); }

 private:
  // Created on first use, because most ranks overlap no moves.
  std::unique_ptr<BackgroundTask> thread_;
};

class DeviceMove final : public BackgroundMove {
 public:
  explicit DeviceMove(Device& device)
      : device_(device), fork_(device.MakeEvent()), join_(device.MakeEvent()) {}

  void Start(const std::function<absl::Status()>& move) override {
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
