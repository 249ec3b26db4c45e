// The threads of one session of a simulated process. The real code runs on them, one thread at a
// time, until it waits; its waits take virtual time.
//
// A thread runs when the timeline resumes it, which hangs and stops of its host postpone. A wait
// ends when its condition holds after a Wake, or at its deadline. After Kill, no wait lasts: the
// threads run to their ends, and what they do must have no effect on the simulation (killed()).
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "tests/base/fiber.h"
#include "tests/simulation/timeline.h"

namespace cadre::simulation {

class Threads {
 public:
  class Thread;

  explicit Threads(Timeline& timeline) : timeline_(timeline) {}
  // Requires: all threads have ended.
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // Begins a thread, at the present time but not before the caller waits or returns.
  std::shared_ptr<Thread> Start(const Gate& gate, std::function<void()> body);
  static bool HasEnded(const Thread& thread);
  // Whether the caller is one of the threads of any session.
  static bool OnThread();

  // ---- From one of the threads

  // Waits until `ready` or the deadline; returns `ready`.
  bool Await(absl::FunctionRef<bool()> ready, absl::Time deadline = absl::InfiniteFuture());
  // Waits for the next Wake, or until the deadline.
  void AwaitWake(absl::Time deadline = absl::InfiniteFuture());
  // Waits until the thread has ended, also after Kill.
  void AwaitEnd(const Thread& thread);

  // ---- From everywhere

  // What a wait depends on may have changed.
  void Wake();
  // Requires: not called from a thread.
  void Kill();
  bool killed() const { return killed_; }

 private:
  class Stack;

  void Resume(Thread& thread);
  void ScheduleResume(const std::shared_ptr<Thread>& thread, absl::Time when);
  // Suspends the current thread.
  void Suspend(absl::Time deadline);

  Timeline& timeline_;
  bool killed_ = false;
  // Those that have not ended.
  std::vector<std::shared_ptr<Thread>> threads_;
};

}  // namespace cadre::simulation
