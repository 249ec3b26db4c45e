// Streams, events and graphs of an emulated device, without CUDA's rules (emulated_machine.h has
// those).
//
// A queue orders only what it was given after what gave it, and waits only by points: no lock is
// shared by those who give work and those who do it, so that a race that a device would have is one
// that a sanitizer sees.
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

// What is done in the order of a stream. Its result becomes the device's error.
using Work = std::function<cudaError_t()>;

// A number that threads wait for to change. Not std::atomic's own waiting, whose threads meet in a
// table that they share: to a sanitizer that would order what nothing else orders. Thread-safe.
class Number {
 public:
  uint32_t Get() const { return value_.load(std::memory_order_acquire); }
  // And wakes whoever waits.
  void Set(uint32_t value);
  void Increment();
  // Returns when it is not `value` (any more).
  void AwaitOther(uint32_t value) const;

 private:
  void Wake();

  std::atomic<uint32_t> value_ = 0;
};

// Something that happens once. Thread-safe.
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

// A thread that does what it is given, in order. Thread-safe.
class TaskQueue {
 public:
  TaskQueue();
  // Does first what was given.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void Push(std::function<void()> task);
  // Until all is done that was given before the call.
  void Drain() const;

 private:
  struct Node {
    std::function<void()> task;
    std::atomic<Node*> next = nullptr;
  };
  void Work();

  // Who pushes; the thread that works never takes it.
  std::mutex pushers_;
  Node* last_;
  // Of the thread that works: done already.
  Node* first_;
  // Tasks, modulo 2^32.
  Number pushed_;
  Number done_;
  std::thread thread_;
};

// Work with an order that is only partly given.
struct GraphNode {
  Work work;
  // Of earlier nodes.
  std::vector<int> after;
  // Nodes of one branch follow one another.
  int branch = 0;
};

// Plays nodes, one play at a time. Thread-safe.
class GraphPlayer {
 public:
  // parallel: a thread for every branch but the first.
  GraphPlayer(std::vector<GraphNode> nodes, bool parallel);
  // Returns when all is done; the first error.
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
