#include "tests/base/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "glog/logging.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cadre {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kMinStackBytes = 256 << 10;
#else
constexpr size_t kMinStackBytes = 0;
#endif

// The destination of the switch in progress.
__thread Fiber* arriving = nullptr;
// The origin of the switch in progress.
__thread Fiber* leaving = nullptr;

// The offset of the next stack in its pages. Stacks with equal offsets would compete for the same
// lines of the cache.
size_t NextShift() {
  constexpr size_t kStep = 256;
  constexpr size_t kSteps = 16;
  static __thread size_t made = 0;
  return made++ % kSteps * kStep;
}

}  // namespace

#if defined(__x86_64__)
// Saves the callee-saved registers and the stack pointer, and continues on the other stack.
extern "C" void cadre_switch_stacks(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl cadre_switch_stacks
.hidden cadre_switch_stacks
.type cadre_switch_stacks, @function
cadre_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cadre_switch_stacks, .-cadre_switch_stacks
)");
#endif

Fiber::Fiber() {
#if defined(__SANITIZE_THREAD__)
  shadow_ = __tsan_get_current_fiber();
#endif
#if !defined(__x86_64__)
  place_ = new ucontext_t;
#endif
}

Fiber::Fiber(void (*entry)(void*), void* context, size_t stack_bytes)
    : entry_(entry), context_(context), stack_bytes_(std::max(stack_bytes, kMinStackBytes)) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, stack_bytes_ + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PCHECK(memory != MAP_FAILED) << "the stack of a fiber";
  stack_ = static_cast<char*>(memory);
  // A guard page, so that an overflow of the stack ends the process.
  PCHECK(mprotect(stack_, page, PROT_NONE) == 0);
  bottom_ = stack_ + page;
  size_ = stack_bytes_;
#if defined(__x86_64__)
  auto* top = reinterpret_cast<void**>(stack_ + page + stack_bytes_ - NextShift());
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(&Fiber::Begin);
  // Space for the six registers, which are zero.
  place_ = top - 8;
#else
  auto* made = new ucontext_t;
  PCHECK(getcontext(made) == 0);
  made->uc_stack.ss_sp = stack_ + page;
  made->uc_stack.ss_size = stack_bytes_ - NextShift();
  made->uc_link = nullptr;
  makecontext(made, &Fiber::Begin, 0);
  place_ = made;
#endif
#if defined(__SANITIZE_THREAD__)
  shadow_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if !defined(__x86_64__)
  delete static_cast<ucontext_t*>(place_);
#endif
  if (stack_ == nullptr) return;
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(shadow_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(bottom_, size_);
#endif
  munmap(stack_, stack_bytes_ + (static_cast<const char*>(bottom_) - stack_));
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  arriving = &to;
  leaving = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.shadow_, 0);
#endif
#if defined(__x86_64__)
  cadre_switch_stacks(&from.place_, to.place_);
#else
  swapcontext(static_cast<ucontext_t*>(from.place_), static_cast<ucontext_t*>(to.place_));
#endif
  from.Arrived();
}

void Fiber::Arrived() {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &size);
  // The bounds of a thread's own stack are known only after the first switch away from it.
  if (leaving->stack_ == nullptr) {
    leaving->bottom_ = bottom;
    leaving->size_ = size;
  }
#endif
}

void Fiber::Begin() {
  Fiber& self = *arriving;
  self.Arrived();
  self.entry_(self.context_);
  std::abort();
}

}  // namespace cadre
