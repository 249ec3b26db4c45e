// A fiber: a stack on which a function runs. Switching between fibers needs no system call.
//
// A fiber stays on the thread that made it.
#pragma once

#include <cstddef>

namespace cadre {

class Fiber {
 public:
  // The fiber of the calling thread's own stack, which is running.
  Fiber();
  // Runs `entry(context)`, which never returns, after the first switch to the fiber. With
  // sanitizers, the stack has at least 256 KiB.
  Fiber(void (*entry)(void*), void* context, size_t stack_bytes);
  // Requires: the fiber is not running.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Suspends `from`, which is running, and resumes `to`.
  static void Switch(Fiber& from, Fiber& to);

 private:
  [[noreturn]] static void Begin();
  void Arrived();

  void (*const entry_)(void*) = nullptr;
  void* const context_ = nullptr;
  const size_t stack_bytes_ = 0;
  char* stack_ = nullptr;
  // The stack pointer of the suspended fiber.
  void* place_ = nullptr;
  // State for the sanitizers.
  void* shadow_ = nullptr;
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cadre
