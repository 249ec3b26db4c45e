// A condition variable for absl::Mutex whose timeouts follow the steady clock. The timed waits of
// absl::Mutex follow the system's clock: if that is set back by an hour, they last an hour longer.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace cadre {

class SteadyCondVar {
 public:
  // To be called after every change that may make a predicate true.
  void NotifyAll() { changed_.notify_all(); }

  // Waits until the predicate is true or the timeout has passed; returns the predicate's value.
  // Requires: the mutex is held, also when NotifyAll's change is made.
  template <typename Predicate>
  bool WaitFor(absl::Mutex& mutex, absl::Duration timeout,
               const Predicate& is_true) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    // A longer timeout would overflow the clock.
    const absl::Duration limit = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
    Lock lock{mutex};
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(limit), is_true);
  }

 private:
  // The names that std::condition_variable_any requires.
  struct Lock {
    absl::Mutex& mutex;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
  };

  std::condition_variable_any changed_;
};

}  // namespace cadre
