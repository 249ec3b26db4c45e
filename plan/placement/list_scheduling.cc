// List scheduling, then local search.
//
// The list schedule is HEFT (Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity
// task scheduling for heterogeneous computing", IEEE TPDS 13, 2002). Operators are taken by upward
// rank: the longest path to the end with mean compute and transfer times. Each is placed on the
// device where it finishes first, possibly in a gap between operators that are scheduled already
// (insertion). Unlike HEFT, devices have limited memory: a device is excluded if the remaining
// operators could then not be packed (MemoryReserve, packing.h), so the heuristic never has to
// backtrack.
//
// HEFT ignores the later transfers that a placement causes. The result is therefore compared with
// each single device that has enough memory, and improved by local search: move one operator, or
// swap the devices of two, reschedule with upward ranks for the actual placement, and accept the
// first improvement.
//
// Cost: the list schedule takes (operators + edges) times devices, plus the insertion; local search
// takes devices * operators + operators^2 reschedulings per round and is limited by kMaxWork. The
// result has no guarantee; its gap refers to the lower bound of schedule.h. Deterministic.
#include <algorithm>
#include <limits>
#include <utility>

#include "plan/placement/packing.h"
#include "plan/placement/schedule.h"

namespace cadre {
namespace {

// Mean transfer times are taken over at most so many devices, evenly chosen, because their number
// is squared.
constexpr int kMaxRankDevices = 16;
// An improvement must exceed rounding errors: the new makespan is below this part of the old one.
constexpr double kBetter = 1 - 1e-9;
// Operators and edges that local search may visit, over all schedules; ten million take about a
// second.
constexpr int64_t kMaxWork = 20'000'000;

// The operators of a device, by start.
class Timeline {
 public:
  // The earliest start from `ready` on at which the device is free for `seconds`.
  double EarliestStart(double ready, double seconds) const {
    double free = 0;
    for (const auto& [start, finish] : taken_) {
      const double begin = std::max(free, ready);
      if (begin + seconds <= start) return begin;
      free = std::max(free, finish);
    }
    return std::max(free, ready);
  }
  void Take(double start, double finish) {
    const std::pair<double, double> slot(start, finish);
    taken_.insert(std::upper_bound(taken_.begin(), taken_.end(), slot), slot);
  }
  void Clear() { taken_.clear(); }

 private:
  std::vector<std::pair<double, double>> taken_;
};

// Operators by decreasing rank, each after its predecessors.
std::vector<int> ByRank(const PlacementProblem& problem, const std::vector<double>& rank) {
  std::vector<int> sequence = problem.order;
  std::stable_sort(sequence.begin(), sequence.end(),
                   [&](int a, int b) { return rank[a] > rank[b]; });
  return sequence;
}

double MeanTransfer(const PlacementProblem& problem, int edge) {
  const int devices = problem.device_count();
  const int used = std::min(devices, kMaxRankDevices);
  double sum = 0;
  for (int a = 0; a < used; ++a) {
    for (int b = 0; b < used; ++b) {
      sum += problem.TransferSeconds(edge, a * devices / used, b * devices / used);
    }
  }
  return sum / (used * used);
}

// The longest path from each operator to the end, with `seconds` of an operator and `transfer`
// seconds of an edge.
template <typename Seconds, typename Transfer>
std::vector<double> UpwardRanks(const PlacementProblem& problem, Seconds seconds,
                                Transfer transfer) {
  std::vector<double> rank(problem.ops.size(), 0);
  for (auto it = problem.order.rbegin(); it != problem.order.rend(); ++it) {
    double after = 0;
    for (const int e : problem.out[*it]) {
      after = std::max(after, transfer(e) + rank[problem.edge(e).to]);
    }
    rank[*it] = seconds(*it) + after;
  }
  return rank;
}

// The time at which an operator's inputs have arrived. Requires: its predecessors are scheduled.
double ReadyOn(const PlacementProblem& problem, const OperatorSchedule& schedule, int op,
               int device) {
  double ready = 0;
  for (const int e : problem.in[op]) {
    const int from = problem.edge(e).from;
    const int at = schedule.device[from];
    ready = std::max(ready, schedule.start[from] + problem.Seconds(from, at) +
                                problem.TransferSeconds(e, at, device));
  }
  return ready;
}

void PlaceOperator(const PlacementProblem& problem, int op, int device, double start,
                   OperatorSchedule& schedule, std::vector<Timeline>& timelines) {
  const double finish = start + problem.Seconds(op, device);
  schedule.device[op] = device;
  schedule.start[op] = start;
  schedule.makespan = std::max(schedule.makespan, finish);
  timelines[device].Take(start, finish);
}

OperatorSchedule EmptySchedule(const PlacementProblem& problem) {
  return {.device = std::vector<int>(problem.ops.size(), -1),
          .start = std::vector<double>(problem.ops.size(), 0)};
}

OperatorSchedule EarliestFinish(const PlacementProblem& problem, const std::vector<int>& packing) {
  OperatorSchedule schedule = EmptySchedule(problem);
  std::vector<Timeline> timelines(problem.devices.size());
  MemoryReserve reserve(problem, packing);
  const std::vector<double> ranks = UpwardRanks(
      problem, [&](int op) { return problem.op(op).mean; },
      [&](int edge) { return MeanTransfer(problem, edge); });
  for (const int i : ByRank(problem, ranks)) {
    int best = -1;
    double best_start = 0;
    double best_finish = std::numeric_limits<double>::infinity();
    for (int d = 0; d < problem.device_count(); ++d) {
      const double seconds = problem.Seconds(i, d);
      const double start = timelines[d].EarliestStart(ReadyOn(problem, schedule, i, d), seconds);
      if (start + seconds >= best_finish || !reserve.Allows(i, d)) continue;
      best = d;
      best_start = start;
      best_finish = start + seconds;
    }
    reserve.Place(i, best);
    PlaceOperator(problem, i, best, best_start, schedule, timelines);
  }
  return schedule;
}

// The schedule of a given placement: operators by upward rank, also into gaps.
OperatorSchedule SchedulePlacement(const PlacementProblem& problem,
                                   const std::vector<int>& device) {
  OperatorSchedule schedule = EmptySchedule(problem);
  std::vector<Timeline> timelines(problem.devices.size());
  const std::vector<double> ranks = UpwardRanks(
      problem, [&](int op) { return problem.Seconds(op, device[op]); },
      [&](int e) {
        const PlacementProblem::Edge& edge = problem.edge(e);
        return problem.TransferSeconds(e, device[edge.from], device[edge.to]);
      });
  for (const int i : ByRank(problem, ranks)) {
    const double start = timelines[device[i]].EarliestStart(
        ReadyOn(problem, schedule, i, device[i]), problem.Seconds(i, device[i]));
    PlaceOperator(problem, i, device[i], start, schedule, timelines);
  }
  return schedule;
}

// Local search: moves operators to other devices and swaps the devices of two operators, as long as
// this reduces the makespan.
class Improver {
 public:
  Improver(const PlacementProblem& problem, OperatorSchedule start)
      : problem_(problem),
        best_(std::move(start)),
        tries_(kMaxWork / (std::ssize(problem.ops) + std::ssize(problem.edges) + 1)) {}

  OperatorSchedule Improve() {
    for (bool better = true; better && tries_ > 0;) {
      better = MoveEach();
      better = SwapEach() || better;
    }
    return std::move(best_);
  }

 private:
  bool Try(const std::vector<int>& device) {
    --tries_;
    if (!FitsMemory(problem_, device)) return false;
    OperatorSchedule schedule = SchedulePlacement(problem_, device);
    if (schedule.makespan >= best_.makespan * kBetter) return false;
    best_ = std::move(schedule);
    return true;
  }

  bool MoveEach() {
    bool better = false;
    for (int i = 0; i < problem_.size(); ++i) {
      for (int d = 0; d < problem_.device_count() && tries_ > 0; ++d) {
        std::vector<int> device = best_.device;
        if (device[i] == d) continue;
        device[i] = d;
        better = Try(device) || better;
      }
    }
    return better;
  }

  bool SwapEach() {
    bool better = false;
    for (size_t i = 0; i < problem_.ops.size(); ++i) {
      for (size_t j = i + 1; j < problem_.ops.size() && tries_ > 0; ++j) {
        std::vector<int> device = best_.device;
        if (device[i] == device[j]) continue;
        std::swap(device[i], device[j]);
        better = Try(device) || better;
      }
    }
    return better;
  }

  const PlacementProblem& problem_;
  OperatorSchedule best_;
  int64_t tries_;
};

}  // namespace

OperatorSchedule ListSchedule(const PlacementProblem& problem, const std::vector<int>& packing) {
  OperatorSchedule best = EarliestFinish(problem, packing);
  for (int d = 0; d < problem.device_count(); ++d) {
    const std::vector<int> alone(problem.ops.size(), d);
    if (!FitsMemory(problem, alone)) continue;
    OperatorSchedule schedule = SchedulePlacement(problem, alone);
    if (schedule.makespan < best.makespan) best = std::move(schedule);
  }
  return Improver(problem, std::move(best)).Improve();
}

}  // namespace cadre
