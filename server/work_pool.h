// A fixed number of threads for tasks that block on the disk, so that gRPC's threads do not.
//
// Thread-safe. The destructor runs all submitted tasks, then ends the threads.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"

namespace cadre {

class WorkPool {
 public:
  using Work = std::function<void()>;

  // Requires: threads > 0, capacity > 0. At most `capacity` tasks wait.
  WorkPool(int threads, size_t capacity);
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  ~WorkPool();

  // Does not block. Returns false if the queue is full; the task was not accepted.
  bool Submit(Work work) { return queue_.TryPush(std::move(work)); }

 private:
  void Run();

  BoundedQueue<Work> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace cadre
