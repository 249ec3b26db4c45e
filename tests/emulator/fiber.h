// A stack of its own to run a function on, and the switch between such stacks: no system call.
//
// Threads: a fiber stays on the thread that made it.
#pragma once

#include <cstddef>

namespace cadre::emulated {

class Fiber {
 public:
  // The thread's own stack, which runs already.
  Fiber();
  // Runs `entry(context)`, which never returns, once it is switched to.
  Fiber(void (*entry)(void*), void* context);
  // Requires: it does not run.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Stops here, which is `from`, and goes on where `to` stopped.
  static void Switch(Fiber& from, Fiber& to);

 private:
  [[noreturn]] static void Begin();
  void Arrived();

  void (*const entry_)(void*) = nullptr;
  void* const context_ = nullptr;
  char* stack_ = nullptr;
  // Where it stopped.
  void* place_ = nullptr;
  // Of the sanitizers.
  void* shadow_ = nullptr;
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cadre::emulated
