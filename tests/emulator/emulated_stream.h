// Streams, events and graphs of an emulated device, without CUDA's rules (see emulated_cuda.h).
//
// A queue orders a task only after the code that pushed it and after the points that it waits for.
// Threads that push work and threads that run it share no lock, so that ThreadSanitizer reports
// every race that a device would have.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cadre::emulated {

// Work of a stream. Its result becomes the device's error.
using Work = std::function<cudaError_t()>;

// A number whose changes threads can await. std::atomic::wait is not used, because it has a table
// that all threads share: ThreadSanitizer would regard accesses as ordered that nothing else
// orders. Thread-safe.
class Number {
 public:
  uint32_t Get() const { return value_.load(std::memory_order_acquire); }
  // Also wakes the threads that wait.
  void Set(uint32_t value);
  void Increment();
  // Returns when the number differs from `value`.
  void AwaitOther(uint32_t value) const;

 private:
  void Wake();

  std::atomic<uint32_t> value_ = 0;
};

// A one-time event that threads can wait for. Thread-safe.
class Point {
 public:
  void Happen();
  bool happened() const { return happened_.Get() != 0; }
  void Wait() const;
  // Requires: happened().
  std::chrono::steady_clock::time_point when() const { return when_; }

 private:
  std::chrono::steady_clock::time_point when_;
  Number happened_;
};

// A thread that runs tasks in order. Thread-safe.
class TaskQueue {
 public:
  TaskQueue();
  // Waits until the remaining tasks have run.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void Push(std::function<void()> task);
  // Waits for all tasks that were pushed before the call.
  void Drain() const;

 private:
  struct Node {
    std::function<void()> task;
    std::atomic<Node*> next = nullptr;
  };
  void Work();

  // Held by threads that push; the thread of the queue never takes it.
  std::mutex pushers_;
  Node* last_;
  // The last finished task; used by the thread of the queue only.
  Node* first_;
  // Numbers of tasks that were pushed and done, modulo 2^32.
  Number pushed_;
  Number done_;
  std::thread thread_;
};

// An operation of a graph. Operations are partially ordered.
struct GraphNode {
  Work work;
  // Indices of earlier nodes that come before this one.
  std::vector<int> after;
  // Nodes of one branch run in sequence.
  int branch = 0;
};

// Runs the nodes of a graph, one launch at a time. Thread-safe.
class GraphPlayer {
 public:
  // With `parallel`, each branch but the first has its own thread.
  GraphPlayer(std::vector<GraphNode> nodes, bool parallel);
  // Returns when all nodes have finished, with the first error.
  cudaError_t Play();

 private:
  cudaError_t PlayNode(const GraphNode& node);
  void PlayBranch(int branch);

  const std::vector<GraphNode> nodes_;
  std::mutex playing_;
  std::vector<std::unique_ptr<Point>> done_;
  std::vector<std::unique_ptr<TaskQueue>> branches_;
  std::atomic<cudaError_t> error_ = cudaSuccess;
};

}  // namespace cadre::emulated
