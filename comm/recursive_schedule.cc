// Recursive halving and doubling, for any number of members and any intervals.
//
// Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication
// Operations in MPICH", Int. J. High Performance Computing Applications 19(1), 2005. Recursive
// doubling exchanges all data with partners at distances 1, 2, 4, ... and takes log2 p steps of n
// bytes: the minimum number of steps ("butterfly"). Recursive halving reduces half of the remaining
// data with partners at distances P/2, ..., 2, 1; followed by a recursive-doubling all-gather it is
// Rabenseifner's all-reduce, 2 log2 p steps and 2 (p - 1) / p n bytes, the minimum number of bytes.
//
// Both need a power of two. Of p = 2^q + r members, each odd one of the first 2 r is an `extra`: it
// sends its data to the even member before it and receives the result at the end. The 2^q others
// are `heads`. Extras are paired with neighbors (the paper does the same) so that a head and its
// extra represent adjacent intervals and are probably on the same host.
//
// Intervals may have gaps and be in any order. A set of intervals is sent as one message for each
// of its `runs`, maximal stretches of memory that the set covers without a gap, and the empty set
// as one empty message. Both sides know the set and therefore the number of messages.
//
// Dependencies. A step names at most one other step (ScheduleStep::after), although a message may
// depend on several receives. Two facts make one enough:
// - A run of a subset lies inside one run of the set. To forward data that was received as a whole,
//   waiting for one receive is therefore enough.
// - Receives that are chained, each waiting for the one before it, complete in order. If an
//   all-gather joins data of several peers into one run, its receives are chained, so a step that
//   waits for the last receive waits for all of them.
// The all-gather of an all-reduce overwrites data that the reduce-scatter sent. It needs no
// dependency: a finished sum contains this member's own addend, so the addend has left before the
// sum can return.
//
// Bits: both partners of a butterfly compute a + b of the same two numbers, and IEEE addition is
// commutative, so all members hold equal bits.
//
// Cost: README.md, one row per collective; schedules have O(log p) steps, O(p log p) if no two
// intervals are adjacent. Limits: with r > 0 the busiest member sends up to n bytes more.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "comm/schedule_parts.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

class Recursion {
 public:
  // Whether intervals belong to members or, in an all-reduce, to heads.
  enum class Owners { kMembers, kHeads };

  Recursion(int index, int64_t members, std::vector<Interval> intervals, Owners owners)
      : index_(index),
        intervals_(std::move(intervals)),
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

  // The runs of intervals [first, last).
  std::vector<Interval> Runs(int first, int last) const;
  std::vector<Interval> All() const { return Runs(0, std::ssize(intervals_)); }
  std::vector<Interval> Own(int member) const { return Runs(member, member + 1); }

  void Send(int peer, const std::vector<Interval>& runs) {
    for (const Interval& run : runs) schedule_.push_back({Kind::kSend, peer, run, Writer(run)});
  }
  // A sum depends on earlier sums into the same data.
  void ReceiveSum(int peer, const std::vector<Interval>& runs) {
    for (const Interval& run : runs) {
      schedule_.push_back({Kind::kReceiveSum, peer, run, Writer(run)});
    }
  }
  // Depends on the last receive, so that a step that waits for this receive waits for both.
  void ReceiveChained(int peer, const std::vector<Interval>& runs) {
    for (const Interval& run : runs) {
      schedule_.push_back({Kind::kReceive, peer, run, LastReceive(schedule_)});
    }
  }
  // Overwrites data as soon as the send that reads it has passed.
  void ReceiveBehindSend(Kind kind, int peer, const std::vector<Interval>& runs) {
    for (const Interval& run : runs) schedule_.push_back({kind, peer, run, Sender(run)});
  }

  // Exchanges all data with each partner in turn.
  void DoubleWhole() {
    const std::vector<Interval> all = All();
    for (int distance = 1; distance < heads_; distance *= 2) {
      const int partner = Member(head_ ^ distance);
      Send(partner, all);
      ReceiveBehindSend(Kind::kReceiveSum, partner, all);
    }
  }
  // Partners split the intervals that they still reduce; each keeps its own half.
  void HalveSums() {
    for (int distance = heads_ / 2; distance > 0; distance /= 2) {
      const int partner = head_ ^ distance;
      Send(Member(partner), Block(partner, distance));
      ReceiveSum(Member(partner), Block(head_, distance));
    }
  }
  // Partners exchange the intervals that they have.
  void DoubleIntervals() {
    for (int distance = 1; distance < heads_; distance *= 2) {
      const int partner = head_ ^ distance;
      Send(Member(partner), Block(head_, distance));
      ReceiveChained(Member(partner), Block(partner, distance));
    }
  }

  Schedule Take() { return std::move(schedule_); }

 private:
  // The member of a head.
  int Member(int head) const { return head < extras_ ? 2 * head : head + extras_; }
  // Intervals of the block of `count` heads (a power of two) that contains `head`.
  std::vector<Interval> Block(int head, int count) const {
    const int first = head & ~(count - 1);
    if (owners_ == Owners::kHeads) return Runs(first, first + count);
    return Runs(Member(first), Member(first + count));
  }

  // The receive that a send of `run` depends on: the last receive that wrote to the run if it wrote
  // all of the run, otherwise the last receive of all, which completes after the others.
  int Writer(const Interval& run) const;
  // The send that contains `run`.
  int Sender(const Interval& run) const;

  const int index_;
  const std::vector<Interval> intervals_;
  const Owners owners_;
  const int heads_;
  const int extras_;
  const int head_;
  Schedule schedule_;
};

std::vector<Interval> Recursion::Runs(int first, int last) const {
  std::vector<Interval> sorted;
  for (int i = first; i < last; ++i) {
    const Interval& interval = intervals_[i];
    if (interval.size() > 0) sorted.push_back(interval);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> runs;
  for (const Interval& interval : sorted) {
    if (!runs.empty() && runs.back().end == interval.begin) {
      runs.back().end = interval.end;
    } else {
      runs.push_back(interval);
    }
  }
  if (runs.empty()) runs.push_back({});
  return runs;
}

int Recursion::Writer(const Interval& run) const {
  for (int i = std::ssize(schedule_) - 1; i >= 0; --i) {
    const ScheduleStep& step = schedule_[i];
    if (step.kind == Kind::kSend || Intersect(step.interval, run).empty()) continue;
    return step.interval.contains(run) ? i : LastReceive(schedule_);
  }
  return ScheduleStep::kNone;
}

int Recursion::Sender(const Interval& run) const {
  int i = std::ssize(schedule_) - 1;
  while (i >= 0 && !(schedule_[i].kind == Kind::kSend && schedule_[i].interval.contains(run))) --i;
  return i >= 0 ? i : ScheduleStep::kNone;
}

std::vector<Interval> Copy(std::span<const Interval> intervals) {
  return {intervals.begin(), intervals.end()};
}

// Whether a reduction ends with each member's own interval or with all data.
enum class Result { kOwn, kAll };

// A reduction by `phases` among the heads. An extra sends all its data to its head first and
// receives its result last.
Schedule Reduce(Recursion recursion, int index, Result result,
                std::initializer_list<void (Recursion::*)()> phases) {
  const auto result_of = [&](int member) {
    return result == Result::kOwn ? recursion.Own(member) : recursion.All();
  };
  if (recursion.is_extra()) {
    recursion.Send(index - 1, recursion.All());
    recursion.ReceiveBehindSend(Kind::kReceive, index - 1, result_of(index));
    return recursion.Take();
  }
  if (recursion.has_extra()) recursion.ReceiveSum(index + 1, recursion.All());
  for (const auto phase : phases) (recursion.*phase)();
  if (recursion.has_extra()) recursion.Send(index + 1, result_of(index + 1));
  return recursion.Take();
}

}  // namespace

Schedule ButterflyReduceScatter(int index, std::span<const Interval> intervals) {
  return Reduce({index, std::ssize(intervals), Copy(intervals), Recursion::Owners::kMembers}, index,
                Result::kOwn, {&Recursion::DoubleWhole});
}

Schedule ButterflyAllReduce(int index, int members, int64_t elements) {
  return Reduce({index, members, {{0, elements}}, Recursion::Owners::kHeads}, index, Result::kAll,
                {&Recursion::DoubleWhole});
}

Schedule HalvingReduceScatter(int index, std::span<const Interval> intervals) {
  return Reduce({index, std::ssize(intervals), Copy(intervals), Recursion::Owners::kMembers}, index,
                Result::kOwn, {&Recursion::HalveSums});
}

Schedule DoublingAllGather(int index, std::span<const Interval> intervals) {
  Recursion recursion(index, std::ssize(intervals), Copy(intervals), Recursion::Owners::kMembers);
  if (recursion.is_extra()) {
    recursion.Send(index - 1, recursion.Own(index));
    // The data includes this member's own interval, unchanged; without it there would be two
    // messages.
    recursion.ReceiveChained(index - 1, recursion.All());
    return recursion.Take();
  }
  if (recursion.has_extra()) recursion.ReceiveChained(index + 1, recursion.Own(index + 1));
  recursion.DoubleIntervals();
  if (recursion.has_extra()) recursion.Send(index + 1, recursion.All());
  return recursion.Take();
}

Schedule HalvingDoublingAllReduce(int index, int members, int64_t elements) {
  return Reduce({index, members, EqualIntervals(elements, Recursion::HeadsAmong(members)),
                 Recursion::Owners::kHeads},
                index, Result::kAll, {&Recursion::HalveSums, &Recursion::DoubleIntervals});
}

}  // namespace cadre
