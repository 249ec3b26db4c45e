#include "tests/emulator/emulated_stream.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

namespace cadre::emulated {

void Number::Wake() {
  syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Number::Set(uint32_t value) {
  value_.store(value, std::memory_order_release);
  Wake();
}

void Number::Increment() {
  value_.fetch_add(1, std::memory_order_release);
  Wake();
}

void Number::AwaitOther(uint32_t value) const {
  static_assert(sizeof(value_) == sizeof(uint32_t));
  // The kernel compares the value again before it blocks the thread, so no change is missed.
  while (Get() == value) {
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

void Point::Happen() {
  when_ = std::chrono::steady_clock::now();
  happened_.Set(1);
}

void Point::Wait() const { happened_.AwaitOther(0); }

TaskQueue::TaskQueue() : last_(new Node), first_(last_), thread_([this] { Work(); }) {}

TaskQueue::~TaskQueue() {
  Push(nullptr);
  thread_.join();
  delete first_;
}

void TaskQueue::Push(std::function<void()> task) {
  auto* node = new Node;
  node->task = std::move(task);
  const std::lock_guard lock(pushers_);
  last_->next.store(node, std::memory_order_release);
  last_ = node;
  pushed_.Increment();
}

void TaskQueue::Work() {
  for (uint32_t done = 0;; ++done) {
    pushed_.AwaitOther(done);
    Node* node = first_->next.load(std::memory_order_acquire);
    delete std::exchange(first_, node);
    if (!node->task) return;
    node->task();
    // The task releases its resources before it counts as finished.
    node->task = nullptr;
    done_.Increment();
  }
}

void TaskQueue::Drain() const {
  const uint32_t target = pushed_.Get();
  // Compares the signed difference, because both numbers wrap around.
  for (uint32_t done = done_.Get(); static_cast<int32_t>(target - done) > 0; done = done_.Get()) {
    done_.AwaitOther(done);
  }
}

GraphPlayer::GraphPlayer(std::vector<GraphNode> nodes, bool parallel) : nodes_(std::move(nodes)) {
  int branches = 1;
  for (const GraphNode& node : nodes_) branches = std::max(branches, node.branch + 1);
  if (!parallel) return;
  for (int i = 1; i < branches; ++i) branches_.push_back(std::make_unique<TaskQueue>());
}

cudaError_t GraphPlayer::Play() {
  const std::lock_guard lock(playing_);
  error_.store(cudaSuccess);
  if (branches_.empty()) {
    for (const GraphNode& node : nodes_) {
      const cudaError_t error = node.work();
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  done_.clear();
  for (size_t i = 0; i < nodes_.size(); ++i) done_.push_back(std::make_unique<Point>());
  for (size_t i = 0; i < branches_.size(); ++i) {
    branches_[i]->Push([this, branch = static_cast<int>(i) + 1] { PlayBranch(branch); });
  }
  PlayBranch(0);
  for (const auto& branch : branches_) branch->Drain();
  return error_.load();
}

void GraphPlayer::PlayBranch(int branch) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const GraphNode& node = nodes_[i];
    if (node.branch != branch) continue;
    for (const int before : node.after) {
      if (nodes_[before].branch != branch) {
        done_[before]->Wait();
      }
    }
    PlayNode(node);
    done_[i]->Happen();
  }
}

cudaError_t GraphPlayer::PlayNode(const GraphNode& node) {
  if (error_.load(std::memory_order_relaxed) != cudaSuccess) return cudaSuccess;
  const cudaError_t error = node.work();
  if (error != cudaSuccess) {
    cudaError_t none = cudaSuccess;
    error_.compare_exchange_strong(none, error);
  }
  return error;
}

}  // namespace cadre::emulated
