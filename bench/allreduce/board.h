// The ranks of bench_allreduce all run the same program (SPMD) and share a small block of memory,
// created before they are forked: barriers, a slot for each rank, and the first error.
//
// Ranks that are processes form one group and ranks that are threads another one, with a connection
// of its own. Every call of Member is collective: all its ranks make the same calls in the same
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
  // `timeout`: longest wait in a barrier. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Board>> Make(int groups, int ranks, absl::Duration timeout);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Records an error unless there is one already. All barriers then fail.
  void Fail(const absl::Status& status);
  // The recorded error. Requires: no rank runs any more.
  absl::Status failure() const;

 private:
  friend class Member;
  struct Barrier;
  struct Slot;
  struct Memory;

  Board(Memory* memory, int groups, int ranks, absl::Duration timeout)
      : memory_(memory), groups_(groups), ranks_(ranks), timeout_(timeout) {}
  absl::Status Wait(Barrier& barrier, int count);

  Memory* const memory_;
  const int groups_;
  const int ranks_;
  const absl::Duration timeout_;
};

// One rank of one group. Borrows the board; copyable.
class Member {
 public:
  Member(Board& board, int group, int rank) : board_(&board), group_(group), rank_(rank) {}

  int group() const { return group_; }
  int rank() const { return rank_; }
  int ranks() const { return board_->ranks_; }
  absl::Duration timeout() const { return board_->timeout_; }

  // Wait for the ranks of the group, and for those of all groups. Errors: the board's failure;
  // DeadlineExceeded.
  absl::Status Barrier();
  absl::Status BarrierOfAll();
  // What each rank of the group passes, by rank. Requires: at most 4 KiB.
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view text);

  // Over the ranks of all groups: the maximum, the sum, and the first text that is not empty.
  absl::StatusOr<double> Max(double value);
  absl::StatusOr<double> Sum(double value);
  absl::StatusOr<std::string> First(absl::string_view text);

 private:
  absl::StatusOr<std::vector<std::string>> Gather(Board::Barrier& barrier, int begin, int count,
                                                  absl::string_view text);
  absl::StatusOr<std::vector<std::string>> GatherFromAll(absl::string_view text);
  absl::StatusOr<std::vector<double>> GatherFromAll(double value);

  Board* board_;
  int group_;
  int rank_;
};

}  // namespace cadre::bench
