#include "tests/simulation/faults.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"

namespace cadre::simulation {
namespace {

enum class Subject { kNone, kWorker, kAggregator, kHost };

// How a kind is drawn and described.
struct Kind {
  FaultKind kind;
  const char* text;
  // Largest probability of a rate.
  double rate = 0;
  // Frequency of events relative to the others, and the limits of their length.
  int weight = 0;
  Subject subject = Subject::kNone;
  absl::Duration min_length = absl::ZeroDuration();
  absl::Duration max_length = absl::ZeroDuration();
  // Probability that it is permanent.
  double permanent = 0;
  // Limits of the amount.
  double min_amount = 0;
  double max_amount = 0;
};

constexpr absl::Duration kShort = absl::Milliseconds(200);

const Kind kKinds[] = {
    {FaultKind::kBreakStreams, "streams break", 0.02},
    {FaultKind::kBreakCalls, "bulk calls break", 0.08},
    {FaultKind::kCrashBeforeCommit, "the coordinator crashes before transactions", 0.01},
    {FaultKind::kCrashAfterCommit, "the coordinator crashes after transactions", 0.01},
    {FaultKind::kStallCoordinator, "the coordinator stalls", 0.003},
    {FaultKind::kFullDisk, "disks are full", 0.1},
    {FaultKind::kFailSyncs, "syncs fail", 0.05},
    {FaultKind::kSlowOrders, "orders take seconds", 0.1},
    {FaultKind::kCrashInOrders, "aggregators crash during orders", 0.06},
    {FaultKind::kBreakGroups, "connections of groups break", 0.001},
    {FaultKind::kSlowMessages, "messages are slow", 0.02},
    {FaultKind::kCorruptValues, "ranks restore wrong values", 0.5},
    {FaultKind::kCrashCoordinator, "the coordinator crashes", 0, 20, Subject::kNone,
     absl::Milliseconds(100), absl::Seconds(14)},
    {FaultKind::kJumpCoordinatorClock, "the coordinator crashes and its wall clock jumps", 0, 6,
     Subject::kNone, absl::Milliseconds(100), absl::Seconds(14), 0, -600, 600},
    {FaultKind::kRestoreStore, "the coordinator returns to its store of now", 0, 8, Subject::kNone,
     absl::Seconds(1), absl::Seconds(60)},
    {FaultKind::kSecondCoordinator, "a second coordinator starts with the store of now", 0, 3,
     Subject::kNone, absl::Seconds(1), absl::Seconds(60), 0, 0, 30},
    {FaultKind::kBreakStream, "a stream breaks", 0, 10},
    {FaultKind::kKillWorker, "crashes", 0, 18, Subject::kWorker, kShort, absl::Seconds(40), 0.3},
    {FaultKind::kLoseWorker, "is lost with its host", 0, 7, Subject::kWorker, kShort,
     absl::Seconds(40), 0.3},
    {FaultKind::kLeave, "leaves", 0, 6, Subject::kWorker, kShort, absl::Seconds(40), 0.3},
    {FaultKind::kKillAggregator, "crashes", 0, 10, Subject::kAggregator, kShort, absl::Seconds(30)},
    {FaultKind::kLoseAggregator, "is lost with its host", 0, 5, Subject::kAggregator, kShort,
     absl::Seconds(30)},
    {FaultKind::kMoveAggregator, "crashes and moves", 0, 6, Subject::kAggregator, kShort,
     absl::Seconds(30)},
    {FaultKind::kAbsentAggregator, "crashes and stays away", 0, 6, Subject::kAggregator,
     absl::Seconds(40), absl::Minutes(3)},
    {FaultKind::kLoseFolder, "loses its folder", 0, 5, Subject::kAggregator},
    {FaultKind::kRollBack, "returns to its disk of now", 0, 4, Subject::kAggregator,
     absl::Seconds(2), absl::Seconds(60)},
    {FaultKind::kDamageFile, "has a damaged file", 0, 4, Subject::kAggregator},
    {FaultKind::kSwapDisks, "swaps its disk with the next aggregator", 0, 4, Subject::kAggregator,
     kShort, absl::Seconds(30)},
    {FaultKind::kHangDisk, "has a disk that hangs", 0, 5, Subject::kAggregator, absl::Seconds(1),
     absl::Minutes(2)},
    {FaultKind::kFillDisk, "has a full disk", 0, 4, Subject::kAggregator, absl::Seconds(2),
     absl::Minutes(2)},
    {FaultKind::kCut, "is cut off from the coordinator", 0, 10, Subject::kHost, absl::Seconds(1),
     absl::Seconds(30)},
    {FaultKind::kIsolate, "is cut off from all", 0, 8, Subject::kHost, absl::Seconds(1),
     absl::Seconds(30)},
    {FaultKind::kCutUp, "cannot send to the coordinator", 0, 4, Subject::kHost, absl::Seconds(1),
     absl::Seconds(30)},
    {FaultKind::kCutDown, "receives nothing from the coordinator", 0, 4, Subject::kHost,
     absl::Seconds(1), absl::Seconds(30)},
    // Usually shorter than a lease.
    {FaultKind::kCongest, "has a congested stream", 0, 36, Subject::kHost, absl::Seconds(2),
     absl::Seconds(12)},
    {FaultKind::kStop, "is stopped", 0, 8, Subject::kHost, absl::Seconds(1), absl::Seconds(40)},
    {FaultKind::kHang, "has a hung training thread", 0, 14, Subject::kWorker, absl::Seconds(2),
     absl::Minutes(3), 0.3},
    {FaultKind::kBadData, "cannot open the data", 0, 6, Subject::kWorker, absl::Seconds(5),
     absl::Minutes(3), 0.3},
    {FaultKind::kSmallMemory, "has too little memory", 0, 4, Subject::kWorker, absl::Seconds(5),
     absl::Minutes(3), 0.3},
    {FaultKind::kSlowPreparation, "prepares slowly", 0, 4, Subject::kWorker, absl::Seconds(5),
     absl::Minutes(2), 0, 1, 90},
    {FaultKind::kLaggingLink, "has a lagging link", 0, 20, Subject::kHost, absl::Seconds(30),
     absl::Minutes(3), 0, 0.3, 2.5},
    {FaultKind::kSlowLink, "has a slow link", 0, 6, Subject::kHost, absl::Seconds(10),
     absl::Minutes(3), 0, 0.1, 60},
    {FaultKind::kDiverge, "computes a loss that is NaN", 0, 2, Subject::kWorker},
    {FaultKind::kJumpClock, "has a wall clock that jumps", 0, 12, Subject::kHost,
     absl::ZeroDuration(), absl::ZeroDuration(), 0, -7200, 7200},
};

const Kind& Find(FaultKind kind) {
  return *std::find_if(std::begin(kKinds), std::end(kKinds),
                       [&](const Kind& one) { return one.kind == kind; });
}

double DrawFrom(double low, double high, Dice& dice) {
  return low + (high - low) * static_cast<double>(dice.Between(0, 1000)) / 1000;
}

const Kind& DrawKind(Dice& dice) {
  int total = 0;
  for (const Kind& kind : kKinds) total += kind.weight;
  int left = dice.Between(1, total);
  return *std::find_if(std::begin(kKinds), std::end(kKinds),
                       [&](const Kind& kind) { return (left -= kind.weight) <= 0; });
}

uint32_t Subjects(Subject subject, const FaultRange& range) {
  switch (subject) {
    case Subject::kNone:
      return 1;
    case Subject::kWorker:
      return range.workers;
    case Subject::kAggregator:
      return range.aggregators;
    case Subject::kHost:
      return range.workers + range.aggregators;
  }
  return 1;
}

}  // namespace

std::vector<Fault> DrawFaults(const FaultRange& range, Dice& dice) {
  std::vector<Fault> faults;
  for (const Kind& kind : kKinds) {
    // Some simulations lack some kinds of faults, so that the other kinds occur in more states.
    if (kind.rate == 0 || dice.Chance(0.3)) continue;
    faults.push_back(
        {.kind = kind.kind, .length = range.until, .amount = DrawFrom(0.01, 1, dice) * kind.rate});
  }
  const absl::Duration between = dice.Between(absl::Seconds(4), absl::Seconds(30));
  std::set<uint32_t> lost;
  absl::Duration at;
  while (true) {
    at += dice.Between(absl::Milliseconds(100), 2 * between);
    if (at >= range.until) return faults;
    const Kind& kind = DrawKind(dice);
    Fault fault{.kind = kind.kind, .at = at};
    fault.subject = dice.Between(0, Subjects(kind.subject, range) - 1);
    fault.length = dice.Between(kind.min_length, kind.max_length);
    fault.amount = DrawFrom(kind.min_amount, kind.max_amount, dice);
    if (dice.Chance(kind.permanent)) {
      // A process that has ended starts again at the end of the faults.
      const bool ended = kind.kind == FaultKind::kKillWorker ||
                         kind.kind == FaultKind::kLoseWorker || kind.kind == FaultKind::kLeave;
      if (ended || lost.size() < range.max_lost || lost.count(fault.subject) != 0) {
        fault.length = absl::InfiniteDuration();
        if (!ended) lost.insert(fault.subject);
      }
    }
    faults.push_back(fault);
  }
}

bool IsRate(FaultKind kind) { return Find(kind).rate > 0; }

std::string HostOf(const Fault& fault, const FaultRange& range) {
  switch (Find(fault.kind).subject) {
    case Subject::kNone:
      return "";
    case Subject::kAggregator:
      return absl::StrCat("a", fault.subject);
    default:
      return fault.subject < range.workers ? absl::StrCat("w", fault.subject)
                                           : absl::StrCat("a", fault.subject - range.workers);
  }
}

std::string Describe(const Fault& fault, const FaultRange& range) {
  const Kind& kind = Find(fault.kind);
  if (kind.rate > 0) return absl::StrCat(kind.text, " with probability ", fault.amount);
  const std::string host = HostOf(fault, range);
  std::string text = absl::StrCat("at ", absl::FormatDuration(fault.at), ": ", host,
                                  host.empty() ? "" : " ", kind.text);
  if (kind.max_amount > 0) absl::StrAppend(&text, " (", fault.amount, "s)");
  if (fault.length == absl::InfiniteDuration()) {
    absl::StrAppend(&text, " until the end");
  } else if (kind.max_length > absl::ZeroDuration()) {
    absl::StrAppend(&text, " for ", absl::FormatDuration(fault.length));
  }
  return text;
}

}  // namespace cadre::simulation
