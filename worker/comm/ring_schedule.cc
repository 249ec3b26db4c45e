// Around a ring: every member sends to the next and receives from the one before.
//
// A piece is passed on while it still arrives, so a round costs its latency but not its length
// again. What the all-gather overwrites was sent in the reduce-scatter, of which the ring does not
// say that it is over; it is: a byte of a finished sum arrives only when the member's own addend
// has gone round.
#include <utility>

#include "worker/comm/schedule_parts.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

class Ring {
 public:
  Ring(int index, std::span<const Piece> pieces)
      : index_(index), size_(static_cast<int>(pieces.size())), pieces_(pieces) {}

  // `steps` rounds, of which the first sends the piece `first` places on: its own data, if nothing
  // was received before, and otherwise what the last receive has left.
  void Rounds(int first, int steps, Kind receive) {
    for (int step = 0; step < steps; ++step) {
      schedule_.push_back({Kind::kSend, Around(1), PieceAt(first - step), last_receive_});
      last_receive_ = static_cast<int>(schedule_.size());
      schedule_.push_back({receive, Around(-1), PieceAt(first - step - 1)});
    }
  }
  Schedule Take() { return std::move(schedule_); }

 private:
  int Around(int distance) const { return ((index_ + distance) % size_ + size_) % size_; }
  Piece PieceAt(int distance) const { return pieces_[static_cast<size_t>(Around(distance))]; }

  const int index_;
  const int size_;
  const std::span<const Piece> pieces_;
  Schedule schedule_;
  int last_receive_ = ScheduleStep::kNone;
};

}  // namespace

Schedule RingReduceScatter(int index, std::span<const Piece> pieces) {
  Ring ring(index, pieces);
  ring.Rounds(-1, static_cast<int>(pieces.size()) - 1, Kind::kReceiveSum);
  return ring.Take();
}

Schedule RingAllGather(int index, std::span<const Piece> pieces) {
  Ring ring(index, pieces);
  ring.Rounds(0, static_cast<int>(pieces.size()) - 1, Kind::kReceive);
  return ring.Take();
}

Schedule RingAllReduce(int index, std::span<const Piece> pieces) {
  Ring ring(index, pieces);
  ring.Rounds(-1, static_cast<int>(pieces.size()) - 1, Kind::kReceiveSum);
  ring.Rounds(0, static_cast<int>(pieces.size()) - 1, Kind::kReceive);
  return ring.Take();
}

}  // namespace cadre
