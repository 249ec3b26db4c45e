#include "tests/emulator/block_runner.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "tests/base/fiber.h"

namespace cadre::emulated {

__thread Index thread_index;
__thread Index block_index;
__thread Index block_extent;
__thread Index grid_extent;

namespace {

constexpr size_t kStackBytes = 64 << 10;

std::string NameOf(const void* kernel) {
  Dl_info info = {};
  if (dladdr(kernel, &info) == 0 || info.dli_sname == nullptr) {
    std::ostringstream address;
    address << "at " << kernel;
    return address.str();
  }
  int status = 0;
  char* demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : info.dli_sname;
  std::free(demangled);
  return name;
}

class BlockRunner {
 public:
  static BlockRunner& OfThisThread() {
    static thread_local BlockRunner runner;
    return runner;
  }

  void Run(dim3 grid, dim3 block, const std::function<void()>& body, const void* kernel);
  void Sync(const char* file, int line);
  int CurrentLane() const { return current_->number % kWarp; }
  const uint64_t* Exchange(unsigned mask, uint64_t value, int* lanes, const char* file, int line);

 private:
  // A thread of the kernel, and the fiber that runs it.
  struct KernelThread {
    std::unique_ptr<Fiber> fiber;
    unsigned number = 0;
    Index index = {};
    // Where the thread waits; null if it does not wait.
    const char* file = nullptr;
    int line = 0;
  };
  struct Warp {
    std::array<std::array<uint64_t, kWarp>, 2> values;
    unsigned generation = 0;
    std::vector<KernelThread*> waiting;
  };

  static void Enter(void* self) { static_cast<BlockRunner*>(self)->RunThreads(); }
  [[noreturn]] void RunThreads();
  void BeginBlock();
  bool NextBlock();
  void BeginThread();
  // Lets other threads of the block run. Returns when the current thread may continue.
  void Wait(const char* file, int line);
  KernelThread* TakeIdleOrNew();
  void SwitchTo(KernelThread* other);
  static bool SamePlace(const KernelThread& waiting, const char* file, int line) {
    // Equal file names nearly always have the same address, so strcmp is rarely called.
    return waiting.line == line && (waiting.file == file || std::strcmp(waiting.file, file) == 0);
  }
  [[noreturn]] void Fail(const std::string& what) const;
  [[noreturn]] void FailBecauseOfDeadlock() const;
  std::string Waiters() const;

  Fiber main_;
  std::deque<KernelThread> kernel_threads_;
  std::vector<KernelThread*> idle_;
  KernelThread* current_ = nullptr;

  const std::function<void()>* body_ = nullptr;
  const void* kernel_ = nullptr;
  unsigned threads_ = 0;
  unsigned started_ = 0;
  unsigned ended_ = 0;
  // The index of the thread that begins next.
  Index next_ = {};
  std::deque<KernelThread*> ready_;
  std::vector<KernelThread*> at_barrier_;
  std::vector<Warp> warps_;
};

void BlockRunner::Run(dim3 grid, dim3 block, const std::function<void()>& body,
                      const void* kernel) {
  CHECK(current_ == nullptr) << "a kernel runs another kernel";
  body_ = &body;
  kernel_ = kernel;
  threads_ = block.x * block.y * block.z;
  grid_extent = {grid.x, grid.y, grid.z};
  block_extent = {block.x, block.y, block.z};
  block_index = {0, 0, 0};
  warps_.resize((threads_ + kWarp - 1) / kWarp);
  BeginBlock();
  current_ = TakeIdleOrNew();
  Fiber::Switch(main_, *current_->fiber);
  current_ = nullptr;
}

void BlockRunner::BeginBlock() {
  started_ = 0;
  ended_ = 0;
  next_ = {0, 0, 0};
}

bool BlockRunner::NextBlock() {
  if (++block_index.x == grid_extent.x) {
    block_index.x = 0;
    if (++block_index.y == grid_extent.y) {
      block_index.y = 0;
      if (++block_index.z == grid_extent.z) return false;
    }
  }
  BeginBlock();
  return true;
}

void BlockRunner::BeginThread() {
  current_->number = started_++;
  current_->index = thread_index = next_;
  if (++next_.x < block_extent.x) return;
  next_.x = 0;
  if (++next_.y < block_extent.y) return;
  next_.y = 0;
  ++next_.z;
}

void BlockRunner::RunThreads() {
  while (true) {
    BeginThread();
    (*body_)();
    ++ended_;
    if (!ready_.empty()) {
      idle_.push_back(current_);
      KernelThread* next = ready_.front();
      ready_.pop_front();
      SwitchTo(next);
    } else if (started_ == threads_) {
      if (ended_ < threads_) FailBecauseOfDeadlock();
      if (NextBlock()) continue;
      idle_.push_back(current_);
      Fiber::Switch(*current_->fiber, main_);
    }
  }
}

BlockRunner::KernelThread* BlockRunner::TakeIdleOrNew() {
  if (idle_.empty()) {
    kernel_threads_.emplace_back();
    kernel_threads_.back().fiber = std::make_unique<Fiber>(&BlockRunner::Enter, this, kStackBytes);
    return &kernel_threads_.back();
  }
  KernelThread* idle = idle_.back();
  idle_.pop_back();
  return idle;
}

void BlockRunner::SwitchTo(KernelThread* other) {
  KernelThread* self = current_;
  current_ = other;
  Fiber::Switch(*self->fiber, *other->fiber);
}

void BlockRunner::Wait(const char* file, int line) {
  KernelThread* self = current_;
  self->file = file;
  self->line = line;
  if (!ready_.empty()) {
    KernelThread* next = ready_.front();
    ready_.pop_front();
    SwitchTo(next);
  } else if (started_ < threads_) {
    SwitchTo(TakeIdleOrNew());
  } else {
    FailBecauseOfDeadlock();
  }
  self->file = nullptr;
  thread_index = self->index;
}

void BlockRunner::Sync(const char* file, int line) {
  if (!at_barrier_.empty() && !SamePlace(*at_barrier_.front(), file, line)) {
    current_->file = file;
    current_->line = line;
    Fail("threads of one block are at different barriers: " + Waiters());
  }
  if (at_barrier_.size() + 1 < threads_) {
    at_barrier_.push_back(current_);
    Wait(file, line);
    return;
  }
  ready_.insert(ready_.end(), at_barrier_.begin(), at_barrier_.end());
  at_barrier_.clear();
}

const uint64_t* BlockRunner::Exchange(unsigned mask, uint64_t value, int* lanes, const char* file,
                                      int line) {
  if (mask != kFullMask) {
    current_->file = file;
    current_->line = line;
    Fail("a shuffle without the full mask: " + Waiters());
  }
  const unsigned first = current_->number / kWarp * kWarp;
  Warp& warp = warps_[current_->number / kWarp];
  *lanes = std::min<unsigned>(threads_ - first, kWarp);
  // Two buffers suffice: before all lanes have read these values, a lane may reach the next
  // exchange, but not the one after it.
  auto& values = warp.values[warp.generation % 2];
  values[CurrentLane()] = value;
  if (std::ssize(warp.waiting) + 1 < *lanes) {
    warp.waiting.push_back(current_);
    Wait(file, line);
  } else {
    ready_.insert(ready_.end(), warp.waiting.begin(), warp.waiting.end());
    warp.waiting.clear();
    ++warp.generation;
  }
  return values.data();
}

std::string BlockRunner::Waiters() const {
  std::ostringstream out;
  unsigned waiting = 0;
  const KernelThread* before = nullptr;
  for (const KernelThread& thread : kernel_threads_) {
    if (thread.file == nullptr) continue;
    ++waiting;
    if (before != nullptr && SamePlace(*before, thread.file, thread.line)) continue;
    if (before != nullptr) out << ", ";
    out << "thread " << thread.number << " at " << thread.file << ":" << thread.line;
    before = &thread;
  }
  out << "; " << waiting << " of " << threads_ << " threads wait, " << ended_ << " have ended";
  return out.str();
}

void BlockRunner::Fail(const std::string& what) const {
  LOG(FATAL) << "kernel " << NameOf(kernel_) << ", block (" << block_index.x << ", "
             << block_index.y << ", " << block_index.z << "): " << what;
  std::abort();
}

void BlockRunner::FailBecauseOfDeadlock() const {
  Fail((ended_ > 0 ? "some threads wait for others that have ended: "
                   : "its threads wait for one another: ") +
       Waiters());
}

}  // namespace

void RunGrid(dim3 grid, dim3 block, const std::function<void()>& thread, const void* kernel) {
  BlockRunner::OfThisThread().Run(grid, block, thread, kernel);
}

void SyncBlock(const char* file, int line) { BlockRunner::OfThisThread().Sync(file, line); }

int Lane() { return BlockRunner::OfThisThread().CurrentLane(); }

const uint64_t* Exchange(unsigned mask, uint64_t value, int* lanes, const char* file, int line) {
  return BlockRunner::OfThisThread().Exchange(mask, value, lanes, file, line);
}

}  // namespace cadre::emulated
