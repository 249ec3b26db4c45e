// With partners at distances that double or halve.
//
// Partners need a power of two. Of p = 2^q + r members, each odd one among the first 2 r is an
// `extra`: it hands what it has to the even one before it, and gets its result from there at the
// end. The 2^q others are `heads`. Neighbours are paired so that a head and its extra stand for
// consecutive pieces.
//
// A set of pieces is sent as one message for each of its runs, the stretches of memory that its
// pieces fill without a gap, and a set of nothing as one empty message. Both sides know the set, so
// both know the messages.
//
// Which one step to name where a message waits for several? Two things help. First, a run of a part
// of a set lies within one run of the set, so what was received as a whole is passed on by waiting
// for one receive. Second, receives from one peer end in their order. So where the gather joins
// what came from several peers into one run, each of its receives waits for the last receive before
// it: the last one stands for all.
#include <algorithm>
#include <utility>

#include "worker/comm/schedule_parts.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

class Recursion {
 public:
  // Pieces of members, or, for sums that everybody gets, pieces of heads.
  enum class PiecesOf { kMembers, kHeads };

  Recursion(int index, int members, std::vector<Piece> pieces, PiecesOf owners)
      : index_(index),
        pieces_(std::move(pieces)),
        owners_(owners),
        heads_(HeadsAmong(members)),
        extras_(members - heads_),
        head_(index < 2 * extras_ ? index / 2 : index - extras_) {}

  static int HeadsAmong(int members) {
    int heads = 1;
    while (2 * heads <= members) heads *= 2;
    return heads;
  }

  bool is_extra() const { return index_ < 2 * extras_ && index_ % 2 == 1; }
  bool has_extra() const { return index_ < 2 * extras_ && index_ % 2 == 0; }

  // Pieces [first, last), joined where they touch.
  std::vector<Piece> Runs(int first, int last) const;
  std::vector<Piece> All() const { return Runs(0, static_cast<int>(pieces_.size())); }
  std::vector<Piece> Own(int member) const { return Runs(member, member + 1); }

  void Send(int peer, const std::vector<Piece>& runs) {
    for (const Piece& run : runs) schedule_.push_back({Kind::kSend, peer, run, Writer(run)});
  }
  // Sums wait for the sums before them, in what they add to.
  void ReceiveSum(int peer, const std::vector<Piece>& runs) {
    for (const Piece& run : runs) schedule_.push_back({Kind::kReceiveSum, peer, run, Writer(run)});
  }
  // Waits for the last receive, so as to stand for it.
  void ReceiveChained(int peer, const std::vector<Piece>& runs) {
    for (const Piece& run : runs) {
      schedule_.push_back({Kind::kReceive, peer, run, LastReceive(schedule_)});
    }
  }
  // Overwrites what is being sent, where it was sent.
  void ReceiveBehindSend(Kind kind, int peer, const std::vector<Piece>& runs) {
    for (const Piece& run : runs) schedule_.push_back({kind, peer, run, Sender(run)});
  }

  // The whole of everything, with each partner in turn.
  void DoubleWhole() {
    const std::vector<Piece> all = All();
    for (int distance = 1; distance < heads_; distance *= 2) {
      const int partner = Member(head_ ^ distance);
      Send(partner, all);
      ReceiveBehindSend(Kind::kReceiveSum, partner, all);
    }
  }
  // Of the pieces that the two of them still sum, each keeps its own half.
  void HalveSums() {
    for (int distance = heads_ / 2; distance > 0; distance /= 2) {
      const int partner = head_ ^ distance;
      Send(Member(partner), Block(partner, distance));
      ReceiveSum(Member(partner), Block(head_, distance));
    }
  }
  // Each gets the pieces that the other has. What is overwritten was sent when sums were halved:
  // the finished sum of a byte contains the member's own addend, so that had gone.
  void DoublePieces() {
    for (int distance = 1; distance < heads_; distance *= 2) {
      const int partner = head_ ^ distance;
      Send(Member(partner), Block(head_, distance));
      ReceiveChained(Member(partner), Block(partner, distance));
    }
  }

  Schedule Take() { return std::move(schedule_); }

 private:
  // The head's place among the members.
  int Member(int head) const { return head < extras_ ? 2 * head : head + extras_; }
  // Pieces of the block of `count` heads, a power of two, that `head` is in.
  std::vector<Piece> Block(int head, int count) const {
    const int first = head & ~(count - 1);
    if (owners_ == PiecesOf::kHeads) return Runs(first, first + count);
    return Runs(Member(first), Member(first + count));
  }

  // What has to have arrived before `run` may go: the receive that wrote it last if that one wrote
  // all of it, otherwise the last receive, which stands for all.
  int Writer(const Piece& run) const;
  // The send of which `run` is a part.
  int Sender(const Piece& run) const;

  const int index_;
  const std::vector<Piece> pieces_;
  const PiecesOf owners_;
  const int heads_;
  const int extras_;
  const int head_;
  Schedule schedule_;
};

std::vector<Piece> Recursion::Runs(int first, int last) const {
  std::vector<Piece> sorted;
  for (int i = first; i < last; ++i) {
    const Piece& piece = pieces_[static_cast<size_t>(i)];
    if (piece.size() > 0) sorted.push_back(piece);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::vector<Piece> runs;
  for (const Piece& piece : sorted) {
    if (!runs.empty() && runs.back().end == piece.begin) {
      runs.back().end = piece.end;
    } else {
      runs.push_back(piece);
    }
  }
  if (runs.empty()) runs.push_back({});
  return runs;
}

bool Overlap(const Piece& a, const Piece& b) { return a.begin < b.end && b.begin < a.end; }
bool Contains(const Piece& a, const Piece& b) { return a.begin <= b.begin && b.end <= a.end; }

int Recursion::Writer(const Piece& run) const {
  for (size_t i = schedule_.size(); i > 0; --i) {
    const ScheduleStep& step = schedule_[i - 1];
    if (step.kind == Kind::kSend || !Overlap(step.piece, run)) continue;
    return Contains(step.piece, run) ? static_cast<int>(i - 1) : LastReceive(schedule_);
  }
  return ScheduleStep::kNone;
}

int Recursion::Sender(const Piece& run) const {
  for (size_t i = schedule_.size(); i > 0; --i) {
    const ScheduleStep& step = schedule_[i - 1];
    if (step.kind == Kind::kSend && Contains(step.piece, run)) return static_cast<int>(i - 1);
  }
  return ScheduleStep::kNone;
}

std::vector<Piece> Copy(std::span<const Piece> pieces) { return {pieces.begin(), pieces.end()}; }

// An extra's part of a sum: hands everything in, and gets `result`.
Schedule ExtraSums(Recursion& recursion, int index, const std::vector<Piece>& result) {
  recursion.Send(index - 1, recursion.All());
  recursion.ReceiveBehindSend(Kind::kReceive, index - 1, result);
  return recursion.Take();
}

}  // namespace

Schedule ButterflyReduceScatter(int index, std::span<const Piece> pieces) {
  const int members = static_cast<int>(pieces.size());
  Recursion recursion(index, members, Copy(pieces), Recursion::PiecesOf::kMembers);
  if (recursion.is_extra()) return ExtraSums(recursion, index, recursion.Own(index));
  if (recursion.has_extra()) recursion.ReceiveSum(index + 1, recursion.All());
  recursion.DoubleWhole();
  if (recursion.has_extra()) recursion.Send(index + 1, recursion.Own(index + 1));
  return recursion.Take();
}

Schedule ButterflyAllReduce(int index, int members, int64_t elements) {
  Recursion recursion(index, members, {{0, elements}}, Recursion::PiecesOf::kHeads);
  if (recursion.is_extra()) return ExtraSums(recursion, index, recursion.All());
  if (recursion.has_extra()) recursion.ReceiveSum(index + 1, recursion.All());
  recursion.DoubleWhole();
  if (recursion.has_extra()) recursion.Send(index + 1, recursion.All());
  return recursion.Take();
}

Schedule HalvingReduceScatter(int index, std::span<const Piece> pieces) {
  const int members = static_cast<int>(pieces.size());
  Recursion recursion(index, members, Copy(pieces), Recursion::PiecesOf::kMembers);
  if (recursion.is_extra()) return ExtraSums(recursion, index, recursion.Own(index));
  if (recursion.has_extra()) recursion.ReceiveSum(index + 1, recursion.All());
  recursion.HalveSums();
  if (recursion.has_extra()) recursion.Send(index + 1, recursion.Own(index + 1));
  return recursion.Take();
}

Schedule DoublingAllGather(int index, std::span<const Piece> pieces) {
  const int members = static_cast<int>(pieces.size());
  Recursion recursion(index, members, Copy(pieces), Recursion::PiecesOf::kMembers);
  if (recursion.is_extra()) {
    recursion.Send(index - 1, recursion.Own(index));
    // Its own piece comes back, as it was, for two halves would be two messages.
    recursion.ReceiveChained(index - 1, recursion.All());
    return recursion.Take();
  }
  if (recursion.has_extra()) recursion.ReceiveChained(index + 1, recursion.Own(index + 1));
  recursion.DoublePieces();
  if (recursion.has_extra()) recursion.Send(index + 1, recursion.All());
  return recursion.Take();
}

Schedule HalvingDoublingAllReduce(int index, int members, int64_t elements) {
  Recursion recursion(index, members, EqualPieces(elements, Recursion::HeadsAmong(members)),
                      Recursion::PiecesOf::kHeads);
  if (recursion.is_extra()) return ExtraSums(recursion, index, recursion.All());
  if (recursion.has_extra()) recursion.ReceiveSum(index + 1, recursion.All());
  recursion.HalveSums();
  recursion.DoublePieces();
  if (recursion.has_extra()) recursion.Send(index + 1, recursion.All());
  return recursion.Take();
}

}  // namespace cadre
