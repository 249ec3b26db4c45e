// The number of threads of an operation, and the division of its work among them.
//
// OpenMP keeps that number per calling thread (the control variable nthreads-var belongs to the
// thread's current task), so setting it does not affect other threads. ScopedThreads restores it,
// so that later calls of the same thread are not affected either.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "tensor/layout.h"

namespace cadre {

class ScopedThreads {
 public:
  explicit ScopedThreads(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ScopedThreads() { omp_set_num_threads(before_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  const int before_;
};

// The number of parts for `items` items of `cost` elements each: `threads`, or fewer if there is
// too little work.
inline int PartsFor(int threads, int64_t items, int64_t cost = 1) {
  // With fewer elements, waking a thread costs more than the work.
  constexpr int64_t kMinPerThread = 1 << 13;
  const int64_t worthwhile = items * std::max<int64_t>(cost, 1) / kMinPerThread;
  return std::max<int64_t>(1, std::min<int64_t>({threads, items, worthwhile}));
}

// Calls f(part, begin, end) for `parts` parts of [0, items) of nearly equal size, each on its own
// thread. f must not throw.
template <typename F>
void ForEachPart(int parts, int64_t items, F f) {
  if (parts == 1) {
    f(0, int64_t{0}, items);
    return;
  }
#pragma omp parallel for num_threads(parts) schedule(static)
  for (int part = 0; part < parts; ++part) {
    f(part, PartBegin(items, part, parts), PartBegin(items, part + 1, parts));
  }
}

// Calls f(begin, end) for near-equal parts of [0, items), items of `cost` elements each. f must not
// throw, and what it computes for an item must not depend on the part that the item is in.
template <typename F>
void ForParts(int threads, int64_t items, int64_t cost, F f) {
  ForEachPart(PartsFor(threads, items, cost), items,
              [&f](int, int64_t begin, int64_t end) { f(begin, end); });
}
template <typename F>
void ForParts(int threads, int64_t n, F f) {
  ForParts(threads, n, 1, f);
}

}  // namespace cadre
