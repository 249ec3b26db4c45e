// A pool with a fixed number of threads. It runs tasks that wait for the disk, so that gRPC's
// threads do not have to wait.
//
// Thread-safe. The destructor runs all submitted tasks, then ends the threads.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"

namespace cadre {

class WorkPool {
 public:
  using Work = std::function<void()>;

  // Requires: threads > 0, capacity > 0. At most `capacity` tasks wait.
  WorkPool(int threads, size_t capacity) : queue_(capacity) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        while (std::optional<Work> work = queue_.Pop()) (*work)();
      });
    }
  }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  ~WorkPool() {
    queue_.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  // Does not block. Returns false, and drops the task, if the queue is full.
  bool Submit(Work work) { return queue_.TryPush(std::move(work)); }

 private:
  BoundedQueue<Work> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace cadre
