#include "base/parallel_pieces.h"

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre {
namespace {

class Loop {
 public:
  Loop(const Pieces& pieces, const PieceWork& compute, const PieceWork& append)
      : pieces_(pieces),
        compute_(compute),
        append_(append),
        next_(pieces.begin),
        appended_(pieces.begin) {}

  // The first piece that is not appended yet is always computed by some thread, so its turn comes.
  void Work(int thread) {
    while (const auto piece = Claim()) {
      const auto [begin, end] = *piece;
      const absl::Status computed = compute_(thread, begin, end);
      absl::MutexLock lock(&mutex_);
      const auto is_turn = [this, begin = begin]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return appended_ == begin || !status_.ok();
      };
      mutex_.Await(absl::Condition(&is_turn));
      if (!status_.ok()) return;
      status_ = computed.ok() ? append_(thread, begin, end) : computed;
      appended_ = end;
    }
  }

  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  std::optional<std::pair<int64_t, int64_t>> Claim() {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok() || next_ == pieces_.end) return std::nullopt;
    const int64_t begin = next_;
    next_ = pieces_.end_of(begin);
    return std::pair(begin, next_);
  }

  const Pieces& pieces_;
  const PieceWork& compute_;
  const PieceWork& append_;
  mutable absl::Mutex mutex_;
  // Beginning of the next piece that no thread has claimed.
  int64_t next_ ABSL_GUARDED_BY(mutex_);
  // End of the last piece that was appended.
  int64_t appended_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status ForEachPiece(const Pieces& pieces, int threads, const PieceWork& compute,
                          const PieceWork& append) {
  Loop loop(pieces, compute, append);
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) {
    others.emplace_back([&loop, thread] { loop.Work(thread); });
  }
  loop.Work(0);
  for (std::thread& other : others) other.join();
  return loop.status();
}

}  // namespace cadre
