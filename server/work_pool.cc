#include "server/work_pool.h"

#include <optional>
#include <utility>

namespace cadre {

WorkPool::WorkPool(int threads, size_t capacity) : queue_(capacity) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkPool::~WorkPool() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void WorkPool::Run() {
  while (std::optional<Work> work = queue_.Pop()) (*work)();
}

}  // namespace cadre
