// A barrier counts arrivals; the last rank resets the count and starts the next generation, which
// releases the others. A waiting rank first polls, so that measured work starts within microseconds
// on all ranks; after a while it sleeps between polls, so that the ranks of one group do not
// disturb the measurement of the other.
#include "bench/allreduce/board.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "absl/time/clock.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre::bench {
namespace {

constexpr int kMaxGroups = 2;
constexpr size_t kSlotBytes = 4096;
// Longer than the largest difference between ranks of one group at the start of a round.
constexpr absl::Duration kPolling = absl::Milliseconds(5);
constexpr absl::Duration kSleep = absl::Milliseconds(1);

enum FailureState : int { kNoFailure, kWriting, kFailed };

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
  Barrier all;
  Barrier group[kMaxGroups];
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

absl::Status Board::Wait(Barrier& barrier, int count) {
  const uint32_t generation = barrier.generation.load(std::memory_order_acquire);
  if (barrier.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    barrier.arrived.store(0, std::memory_order_relaxed);
    barrier.generation.fetch_add(1, std::memory_order_release);
    return absl::OkStatus();
  }
  const absl::Time start = absl::Now();
  for (int64_t turn = 1; barrier.generation.load(std::memory_order_acquire) == generation; ++turn) {
    // Yields, because there may be more ranks than cores.
    sched_yield();
    if (turn % 256 != 0) continue;
    if (memory_->failure_state.load() == kFailed) return failure();
    const absl::Duration waited = absl::Now() - start;
    if (waited > timeout_) return absl::DeadlineExceededError("a rank did not reach the barrier");
    if (waited > kPolling) absl::SleepFor(kSleep);
  }
  return absl::OkStatus();
}

absl::Status Member::Barrier() { return board_->Wait(board_->memory_->group[group_], ranks()); }

absl::Status Member::BarrierOfAll() {
  return board_->Wait(board_->memory_->all, board_->groups_ * ranks());
}

absl::StatusOr<std::vector<std::string>> Member::Gather(Board::Barrier& barrier, int begin,
                                                        int count, absl::string_view text) {
  Board::Slot* const slots = board_->memory_->slots;
  Board::Slot& own = slots[group_ * ranks() + rank_];
  CHECK_LE(text.size(), kSlotBytes);
  own.size = CopyTo(own.bytes, text);
  CADRE_RETURN_IF_ERROR(board_->Wait(barrier, count));
  std::vector<std::string> texts;
  for (int i = begin; i < begin + count; ++i) texts.emplace_back(slots[i].bytes, slots[i].size);
  // No rank may overwrite its slot before all have read it.
  CADRE_RETURN_IF_ERROR(board_->Wait(barrier, count));
  return texts;
}

absl::StatusOr<std::vector<std::string>> Member::AllGather(absl::string_view text) {
  return Gather(board_->memory_->group[group_], group_ * ranks(), ranks(), text);
}

absl::StatusOr<std::vector<std::string>> Member::GatherFromAll(absl::string_view text) {
  return Gather(board_->memory_->all, 0, board_->groups_ * ranks(), text);
}

absl::StatusOr<std::vector<double>> Member::GatherFromAll(double value) {
  CADRE_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherFromAll(absl::string_view(reinterpret_cast<const char*>(&value), sizeof value)));
  std::vector<double> values(texts.size());
  for (int64_t i = 0; i < std::ssize(texts); ++i) {
    std::memcpy(&values[i], texts[i].data(), sizeof value);
  }
  return values;
}

absl::StatusOr<double> Member::Max(double value) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<double> values, GatherFromAll(value));
  return *std::max_element(values.begin(), values.end());
}

absl::StatusOr<double> Member::Sum(double value) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<double> values, GatherFromAll(value));
  return std::accumulate(values.begin(), values.end(), 0.0);
}

absl::StatusOr<std::string> Member::First(absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherFromAll(text));
  for (const std::string& other : texts) {
    if (!other.empty()) return other;
  }
  return std::string();
}

}  // namespace cadre::bench
