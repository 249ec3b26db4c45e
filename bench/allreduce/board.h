// The board: a small block of memory that all ranks of bench_allreduce share, created before they
// are forked. It holds a barrier, a slot for each rank, and the first error. Every call of
// BoardRank is collective: all ranks make the same calls in the same order.
//
// Process-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre::bench {

class Board {
 public:
  // `timeout`: maximum wait in a barrier. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Board>> Make(int ranks, absl::Duration timeout);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Records the error if it is the first one. All barriers then fail.
  void Fail(const absl::Status& status);
  // The recorded error; OK if there is none. Callable while ranks run.
  absl::Status failure() const;

 private:
  friend class BoardRank;
  struct Slot;
  struct Memory;

  Board(Memory* memory, int ranks, absl::Duration timeout)
      : memory_(memory), ranks_(ranks), timeout_(timeout) {}
  absl::Status Wait();

  Memory* const memory_;
  const int ranks_;
  const absl::Duration timeout_;
};

// One rank on the board, which the object borrows; copyable.
class BoardRank {
 public:
  BoardRank(Board& board, int rank) : board_(&board), rank_(rank) {}

  int rank() const { return rank_; }
  int ranks() const { return board_->ranks_; }
  absl::Duration timeout() const { return board_->timeout_; }

  // Waits for all ranks. Errors: the board's failure; DeadlineExceeded.
  absl::Status Barrier();
  // Returns the texts that the ranks pass, by rank. Requires: at most 4 KiB each.
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view text);

  absl::StatusOr<double> Max(double value);
  absl::StatusOr<double> Sum(double value);

 private:
  absl::StatusOr<std::vector<double>> AllGather(double value);

  Board* board_;
  int rank_;
};

}  // namespace cadre::bench
