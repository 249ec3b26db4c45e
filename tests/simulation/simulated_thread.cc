#include "tests/simulation/simulated_thread.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace cadre::simulation {
namespace {

// The loop of a rank needs a tenth of it.
constexpr size_t kStackBytes = 512 << 10;

}  // namespace

// A stack on which one body runs after another. Stacks are used again, because mapping memory would
// take longer than most bodies.
class Threads::Stack {
 public:
  // Takes a free stack.
  static std::unique_ptr<Stack> Take() {
    if (free().empty()) return std::make_unique<Stack>();
    std::unique_ptr<Stack> stack = std::move(free().back());
    free().pop_back();
    return stack;
  }
  static void Return(std::unique_ptr<Stack> stack) { free().push_back(std::move(stack)); }

  Stack() : fiber_(&Stack::Enter, this, kStackBytes) {}

  void Run(std::function<void()> body) { body_ = std::move(body); }
  bool idle() const { return body_ == nullptr; }
  void Resume() { Fiber::Switch(Main(), fiber_); }
  void Suspend() { Fiber::Switch(fiber_, Main()); }

 private:
  // The stack of the simulation's own thread.
  static Fiber& Main() {
    static auto* const main = new Fiber();
    return *main;
  }
  static std::vector<std::unique_ptr<Stack>>& free() {
    static auto* const stacks = new std::vector<std::unique_ptr<Stack>>();
    return *stacks;
  }
  static void Enter(void* context) {
    auto* const stack = static_cast<Stack*>(context);
    while (true) {
      stack->body_();
      stack->body_ = nullptr;
      stack->Suspend();
    }
  }

  std::function<void()> body_;
  Fiber fiber_;
};

class Threads::Thread {
 public:
  explicit Thread(const Gate& gate) : life(&gate) {}

  Lifetime life;
  // Null: it has ended.
  std::unique_ptr<Stack> stack;
  // The number of times that it was resumed: a later resumption replaces one that is scheduled.
  uint64_t resumed = 0;
  // The time of the next resumption.
  absl::Time scheduled = absl::InfiniteFuture();
  static Thread* current;
};

Threads::Thread* Threads::Thread::current = nullptr;

Threads::~Threads() { CHECK(threads_.empty()); }

bool Threads::HasEnded(const Thread& thread) { return thread.stack == nullptr; }
bool Threads::OnThread() { return Thread::current != nullptr; }

std::shared_ptr<Threads::Thread> Threads::Start(const Gate& gate, std::function<void()> body) {
  auto thread = std::make_shared<Thread>(gate);
  thread->stack = Stack::Take();
  thread->stack->Run(std::move(body));
  threads_.push_back(thread);
  ScheduleResume(thread, timeline_.now());
  return thread;
}

void Threads::ScheduleResume(const std::shared_ptr<Thread>& thread, absl::Time when) {
  if (killed_ || thread->scheduled <= when) return;
  thread->scheduled = when;
  timeline_.At(when, thread->life, [this, thread, resumed = thread->resumed, when] {
    if (thread->resumed == resumed && thread->scheduled == when) Resume(*thread);
  });
}

void Threads::Resume(Thread& thread) {
  CHECK(Thread::current == nullptr);
  ++thread.resumed;
  thread.scheduled = absl::InfiniteFuture();
  Thread::current = &thread;
  thread.stack->Resume();
  Thread::current = nullptr;
  if (!thread.stack->idle()) return;
  Stack::Return(std::move(thread.stack));
  thread.life.End();
  std::erase_if(threads_, [&](const auto& one) { return one.get() == &thread; });
  Wake();
}

void Threads::Suspend(absl::Time deadline) {
  Thread& thread = *Thread::current;
  if (deadline < absl::InfiniteFuture()) {
    const auto self = std::find_if(threads_.begin(), threads_.end(),
                                   [&](const auto& one) { return one.get() == &thread; });
    ScheduleResume(*self, deadline);
  }
  thread.stack->Suspend();
}

bool Threads::Await(absl::FunctionRef<bool()> ready, absl::Time deadline) {
  while (!ready()) {
    if (killed_ || timeline_.now() >= deadline) return false;
    Suspend(deadline);
  }
  return true;
}

void Threads::AwaitWake(absl::Time deadline) {
  if (!killed_) Suspend(deadline);
}

void Threads::AwaitEnd(const Thread& thread) {
  while (!HasEnded(thread)) Suspend(absl::InfiniteFuture());
}

void Threads::Wake() {
  for (const auto& thread : threads_) {
    if (thread.get() != Thread::current) ScheduleResume(thread, timeline_.now());
  }
}

// Threads may begin others, and may wait for the ends of others.
void Threads::Kill() {
  killed_ = true;
  while (!threads_.empty()) {
    for (const auto& thread : std::vector(threads_)) {
      if (!HasEnded(*thread)) Resume(*thread);
    }
  }
}

}  // namespace cadre::simulation
