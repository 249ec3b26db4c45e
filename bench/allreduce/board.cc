// A barrier counts arrivals; the last rank resets the count and starts the next generation, which
// releases the others. A waiting rank polls the generation without sleeping, so that measured work,
// which follows a barrier, starts within microseconds on all ranks.
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

constexpr size_t kSlotBytes = 4096;
enum FailureState : int { kNoFailure, kWriting, kFailed };

size_t CopyTo(char* bytes, absl::string_view text) {
  const size_t size = std::min(text.size(), kSlotBytes);
  std::memcpy(bytes, text.data(), size);
  return size;
}

}  // namespace

struct Board::Slot {
  size_t size;
  char bytes[kSlotBytes];
};

struct Board::Memory {
  std::atomic<int> arrived;
  std::atomic<uint32_t> generation;
  std::atomic<int> failure_state;
  absl::StatusCode failure_code;
  Slot failure;
  // One slot for each rank; the array continues after the end of the struct.
  Slot slots[1];
};

absl::StatusOr<std::unique_ptr<Board>> Board::Make(int ranks, absl::Duration timeout) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share the counters");
  const size_t bytes = sizeof(Memory) + sizeof(Slot) * ranks;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("cannot allocate shared memory");
  // mmap returns zeros, which are valid initial values.
  return std::unique_ptr<Board>(new Board(static_cast<Memory*>(memory), ranks, timeout));
}

Board::~Board() { munmap(memory_, sizeof(Memory) + sizeof(Slot) * ranks_); }

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

absl::Status Board::Wait() {
  const uint32_t generation = memory_->generation.load(std::memory_order_acquire);
  if (memory_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    memory_->arrived.store(0, std::memory_order_relaxed);
    memory_->generation.fetch_add(1, std::memory_order_release);
    return absl::OkStatus();
  }
  const absl::Time start = absl::Now();
  for (int64_t turn = 1; memory_->generation.load(std::memory_order_acquire) == generation;
       ++turn) {
    // There may be more ranks than cores.
    sched_yield();
    if (turn % 256 != 0) continue;
    if (memory_->failure_state.load() == kFailed) return failure();
    if (absl::Now() - start > timeout_) {
      return absl::DeadlineExceededError("a rank did not reach the barrier");
    }
  }
  return absl::OkStatus();
}

absl::Status BoardRank::Barrier() { return board_->Wait(); }

absl::StatusOr<std::vector<std::string>> BoardRank::AllGather(absl::string_view text) {
  Board::Slot* const slots = board_->memory_->slots;
  CHECK_LE(text.size(), kSlotBytes);
  slots[rank_].size = CopyTo(slots[rank_].bytes, text);
  CADRE_RETURN_IF_ERROR(board_->Wait());
  std::vector<std::string> texts;
  for (int i = 0; i < ranks(); ++i) texts.emplace_back(slots[i].bytes, slots[i].size);
  // No rank may overwrite its slot before all have read it.
  CADRE_RETURN_IF_ERROR(board_->Wait());
  return texts;
}

absl::StatusOr<std::vector<double>> BoardRank::AllGather(double value) {
  const absl::string_view bytes(reinterpret_cast<const char*>(&value), sizeof value);
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, AllGather(bytes));
  std::vector<double> values;
  for (const std::string& text : texts) {
    std::memcpy(&values.emplace_back(), text.data(), sizeof value);
  }
  return values;
}

absl::StatusOr<double> BoardRank::Max(double value) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<double> values, AllGather(value));
  return *std::max_element(values.begin(), values.end());
}

absl::StatusOr<double> BoardRank::Sum(double value) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<double> values, AllGather(value));
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace cadre::bench
