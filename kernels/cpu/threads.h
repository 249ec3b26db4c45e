// How many threads an operation uses.
//
// OpenMP keeps that number per calling thread (the control variable nthreads-var belongs to the
// thread's current task), so setting it here disturbs neither other threads nor other Kernels
// objects; it is put back so that it does not outlive the call either.
#pragma once

#include <omp.h>

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

// Calls f(begin, end) for near-equal parts of [0, n), one part per thread. f must not throw, and
// what it computes for an element must not depend on the part that the element is in.
template <typename F>
void ForParts(int threads, int64_t n, F f) {
  // Below this many elements waking a thread costs more than the work.
  constexpr int64_t kLeastPerThread = 1 << 14;
  if (threads == 1 || n < 2 * kLeastPerThread) {
    f(int64_t{0}, n);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int part = 0; part < threads; ++part) {
    f(PartBegin(n, part, threads), PartBegin(n, part + 1, threads));
  }
}

}  // namespace cadre
