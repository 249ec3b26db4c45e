// The board: a small block of memory that all ranks of bench_allreduce share, created before they
// are forked. It holds barriers, a slot for each rank, and the first error.
//
// Ranks that are processes form one group, and ranks that are threads form another, each with its
// own connections. Every call of BoardRank is collective: all ranks make the same calls in the same
// order.
//
// Thread-safe and process-safe.
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
  static absl::StatusOr<std::unique_ptr<Board>> Make(int groups, int ranks, absl::Duration timeout);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Records the error if it is the first one. All barriers then fail.
  void Fail(const absl::Status& status);
  // The recorded error; OK if there is none. Callable while ranks run.
  absl::Status failure() const;

 private:
  friend class BoardRank;
  struct Barrier;
  struct Slot;
  struct Memory;

  Board(Memory* memory, int groups, int ranks, absl::Duration timeout)
      : memory_(memory), groups_(groups), ranks_(ranks), timeout_(timeout) {}
  absl::Status Wait(int number);

  Memory* const memory_;
  const int groups_;
  const int ranks_;
  const absl::Duration timeout_;
};

// One rank of one group on the board, which the object borrows; copyable.
class BoardRank {
 public:
  BoardRank(Board& board, int group, int rank) : board_(&board), group_(group), rank_(rank) {}

  int group() const { return group_; }
  int rank() const { return rank_; }
  int ranks() const { return board_->ranks_; }
  absl::Duration timeout() const { return board_->timeout_; }

  // Barrier waits for the ranks of the group, BarrierOfAll for the ranks of all groups. Errors: the
  // board's failure; DeadlineExceeded.
  absl::Status Barrier();
  absl::Status BarrierOfAll();
  // Returns the texts that the ranks of the group pass, by rank. Requires: at most 4 KiB each.
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view text);

  // Reductions over the ranks of all groups: the maximum, the sum, and the first text that is not
  // empty.
  absl::StatusOr<double> Max(double value);
  absl::StatusOr<double> Sum(double value);
  absl::StatusOr<std::string> First(absl::string_view text);

 private:
  // Returns the texts of the ranks that wait at a barrier.
  absl::StatusOr<std::vector<std::string>> Gather(int barrier, absl::string_view text);
  absl::StatusOr<std::vector<double>> GatherFromAll(double value);

  Board* board_;
  int group_;
  int rank_;
};

}  // namespace cadre::bench
