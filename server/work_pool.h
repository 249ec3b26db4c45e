// A fixed number of threads for work that may wait for the disk, so that gRPC's own threads do not.
//
// Thread-safe. The destructor runs what was submitted, then ends the threads.
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

  // Requires: threads > 0, capacity > 0. At most `capacity` pieces of work wait.
  WorkPool(int threads, size_t capacity);
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  ~WorkPool();

  // Never waits. False: too much is waiting already; the work was not taken.
  bool Submit(Work work) { return queue_.TryPush(std::move(work)); }

 private:
  void Run();

  BoundedQueue<Work> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace cadre
