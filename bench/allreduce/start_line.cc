#include "bench/allreduce/start_line.h"

#include <sched.h>
#include <sys/mman.h>

#include <new>

#include "absl/time/clock.h"

namespace cadre::bench {

absl::StatusOr<std::unique_ptr<StartLine>> StartLine::Make(int ranks) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share them");
  void* memory =
      mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("no memory to share");
  return std::unique_ptr<StartLine>(new StartLine(new (memory) Counters(), ranks));
}

StartLine::~StartLine() { munmap(counters_, sizeof(Counters)); }

absl::Status StartLine::Wait(absl::Duration timeout) {
  const uint32_t start = counters_->starts.load(std::memory_order_acquire);
  if (counters_->waiting.fetch_add(1, std::memory_order_acq_rel) + 1 ==
      static_cast<uint32_t>(ranks_)) {
    counters_->waiting.store(0, std::memory_order_relaxed);
    counters_->starts.fetch_add(1, std::memory_order_release);
    return absl::OkStatus();
  }
  const absl::Time deadline = absl::Now() + timeout;
  for (uint32_t turn = 1; counters_->starts.load(std::memory_order_acquire) == start; ++turn) {
    // There may be more ranks than cores.
    sched_yield();
    if (turn % 4096 == 0 && absl::Now() > deadline) {
      return absl::DeadlineExceededError("some rank did not come to the start");
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre::bench
