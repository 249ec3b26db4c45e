// A barrier counts arrivals; the last rank resets the count and starts the next generation, which
// releases the others. A waiting rank polls the generation without sleeping, so that measured work,
// which follows a barrier of one group, starts within microseconds on all ranks of the group.
//
// Only the barrier of all ranks is different if there are two groups: one group waits there while
// the other one measures. Its ranks sleep until the barrier is complete (futex), so that they do
// not take the processors from the measured ranks.
#include "bench/allreduce/board.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/time/clock.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre::bench {
namespace {

constexpr int kMaxGroups = 2;
constexpr size_t kSlotBytes = 4096;
// Number of the barrier of all ranks; the other barriers have the numbers of their groups.
constexpr int kAll = kMaxGroups;
// After this time a sleeping rank checks whether another one has failed.
constexpr absl::Duration kMaxSleep = absl::Milliseconds(20);

enum FailureState : int { kNoFailure, kWriting, kFailed };

// Returns when `word` changes from `value`, after kMaxSleep, or earlier.
void SleepOn(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec limit = absl::ToTimespec(kMaxSleep);
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

size_t CopyTo(char* bytes, absl::string_view text) {
  const size_t size = std::min(text.size(), kSlotBytes);
  std::memcpy(bytes, text.data(), size);
  return size;
}

}  // namespace

struct Board::Barrier {
  std::atomic<int> arrived;
  std::atomic<uint32_t> generation;
};

struct Board::Slot {
  size_t size;
  char bytes[kSlotBytes];
};

struct Board::Memory {
  Barrier barriers[kMaxGroups + 1];
  std::atomic<int> failure_state;
  absl::StatusCode failure_code;
  Slot failure;
  // One slot for each rank of each group; the array continues after the end of the struct.
  Slot slots[1];
};

absl::StatusOr<std::unique_ptr<Board>> Board::Make(int groups, int ranks, absl::Duration timeout) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share the counters");
  const size_t bytes = sizeof(Memory) + sizeof(Slot) * groups * ranks;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("cannot allocate shared memory");
  // mmap returns zeros, which are valid initial values.
  return std::unique_ptr<Board>(new Board(static_cast<Memory*>(memory), groups, ranks, timeout));
}

Board::~Board() { munmap(memory_, sizeof(Memory) + sizeof(Slot) * groups_ * ranks_); }

void Board::Fail(const absl::Status& status) {
  int expected = kNoFailure;
  if (!memory_->failure_state.compare_exchange_strong(expected, kWriting)) return;
  memory_->failure_code = status.code();
  memory_->failure.size = CopyTo(memory_->failure.bytes, status.message());
  memory_->failure_state.store(kFailed);
}

absl::Status Board::failure() const {
  if (memory_->failure_state.load() != kFailed) return absl::OkStatus();
  return {memory_->failure_code, absl::string_view(memory_->failure.bytes, memory_->failure.size)};
}

absl::Status Board::Wait(int number) {
  Barrier& barrier = memory_->barriers[number];
  const uint32_t generation = barrier.generation.load(std::memory_order_acquire);
  const int ranks = number == kAll ? groups_ * ranks_ : ranks_;
  const bool sleeps = number == kAll && groups_ > 1;
  if (barrier.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks) {
    barrier.arrived.store(0, std::memory_order_relaxed);
    barrier.generation.fetch_add(1, std::memory_order_release);
    if (sleeps) WakeAll(barrier.generation);
    return absl::OkStatus();
  }
  const absl::Time start = absl::Now();
  for (int64_t turn = 1; barrier.generation.load(std::memory_order_acquire) == generation; ++turn) {
    if (sleeps) {
      SleepOn(barrier.generation, generation);
    } else {
      // There may be more ranks than cores.
      sched_yield();
      if (turn % 256 != 0) continue;
    }
    if (memory_->failure_state.load() == kFailed) return failure();
    if (absl::Now() - start > timeout_) {
      return absl::DeadlineExceededError("a rank did not reach the barrier");
    }
  }
  return absl::OkStatus();
}

absl::Status BoardRank::Barrier() { return board_->Wait(group_); }
absl::Status BoardRank::BarrierOfAll() { return board_->Wait(kAll); }

absl::StatusOr<std::vector<std::string>> BoardRank::Gather(int barrier, absl::string_view text) {
  Board::Slot* const slots = board_->memory_->slots;
  Board::Slot& own = slots[group_ * ranks() + rank_];
  CHECK_LE(text.size(), kSlotBytes);
  own.size = CopyTo(own.bytes, text);
  CADRE_RETURN_IF_ERROR(board_->Wait(barrier));
  const int begin = barrier == kAll ? 0 : barrier * ranks();
  const int end = barrier == kAll ? board_->groups_ * ranks() : begin + ranks();
  std::vector<std::string> texts;
  for (int i = begin; i < end; ++i) texts.emplace_back(slots[i].bytes, slots[i].size);
  // No rank may overwrite its slot before all have read it.
  CADRE_RETURN_IF_ERROR(board_->Wait(barrier));
  return texts;
}

absl::StatusOr<std::vector<std::string>> BoardRank::AllGather(absl::string_view text) {
  return Gather(group_, text);
}

absl::StatusOr<std::vector<double>> BoardRank::GatherFromAll(double value) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         Gather(kAll, {reinterpret_cast<const char*>(&value), sizeof value}));
  std::vector<double> values;
  for (const std::string& text : texts) {
    std::memcpy(&values.emplace_back(), text.data(), sizeof value);
  }
  return values;
}

absl::StatusOr<double> BoardRank::Max(double value) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<double> values, GatherFromAll(value));
  return *std::max_element(values.begin(), values.end());
}

absl::StatusOr<double> BoardRank::Sum(double value) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<double> values, GatherFromAll(value));
  return std::accumulate(values.begin(), values.end(), 0.0);
}

absl::StatusOr<std::string> BoardRank::First(absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, Gather(kAll, text));
  for (const std::string& other : texts) {
    if (!other.empty()) return other;
  }
  return std::string();
}

}  // namespace cadre::bench
