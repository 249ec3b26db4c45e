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
// each single device that has enough memory, and improved by local search: move a chain of
// operators or a single one, or swap the devices of two, reschedule with upward ranks for the
// actual placement, and accept the first improvement. If the order of the operators is given, the
// list schedule provides devices alone, and all schedules that are compared are in that order.
//
// Cost: the list schedule takes (operators + edges) times devices, plus the insertion; local search
// takes devices * operators + operators^2 reschedulings per round and is limited by max_visits. The
// result has no guarantee; its gap refers to the lower bound of schedule.h. Deterministic.
#include <algorithm>
#include <limits>
#include <utility>

#include "plan/placement/packing.h"
#include "plan/placement/schedule.h"
#include "plan/placement/schedule_builder.h"

namespace cadre {
namespace {

// Mean transfer times are taken over at most so many devices, evenly chosen, because their number
// is squared.
constexpr int kMaxRankDevices = 16;
// An improvement must exceed rounding errors: the new makespan is below this part of the old one.
constexpr double kBetter = 1 - 1e-9;

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

OperatorSchedule EarliestFinish(const PlacementProblem& problem, const std::vector<int>& packing) {
  ScheduleBuilder builder(problem, /*uses_gaps=*/true);
  MemoryReserve reserve(problem, packing);
  const std::vector<double> ranks = UpwardRanks(
      problem, [&](int op) { return problem.op(op).mean; },
      [&](int edge) { return MeanTransfer(problem, edge); });
  for (const int i : ByRank(problem, ranks)) {
    int best = -1;
    double best_finish = std::numeric_limits<double>::infinity();
    for (int d = 0; d < problem.device_count(); ++d) {
      const double finish = builder.EarliestStart(i, d) + problem.Seconds(i, d);
      if (finish >= best_finish || !reserve.Allows(i, d)) continue;
      best = d;
      best_finish = finish;
    }
    reserve.Place(i, best);
    builder.Place(i, best);
  }
  return builder.Take();
}

// The schedule of a given placement: operators by upward rank, or in order.
OperatorSchedule SchedulePlacement(const PlacementProblem& problem,
                                   const std::vector<int>& device) {
  if (problem.in_order) return ScheduleByPriority(problem, device, /*priority=*/{});
  ScheduleBuilder builder(problem, /*uses_gaps=*/true);
  const std::vector<double> ranks = UpwardRanks(
      problem, [&](int op) { return problem.Seconds(op, device[op]); },
      [&](int e) {
        const PlacementProblem::Edge& edge = problem.edge(e);
        return problem.TransferSeconds(e, device[edge.from], device[edge.to]);
      });
  for (const int i : ByRank(problem, ranks)) builder.Place(i, device[i]);
  return builder.Take();
}

// The maximal chains of operators: each one but the first has one input, which nothing else reads.
std::vector<std::vector<int>> ChainsOf(const PlacementProblem& problem) {
  std::vector<std::vector<int>> chains;
  std::vector<size_t> chain_of(problem.ops.size());
  for (const int i : problem.order) {
    const int before = problem.in[i].size() == 1 ? problem.edge(problem.in[i][0]).from : -1;
    if (before >= 0 && problem.out[before].size() == 1) {
      chain_of[i] = chain_of[before];
      chains[chain_of[i]].push_back(i);
    } else {
      chain_of[i] = chains.size();
      chains.push_back({i});
    }
  }
  return chains;
}

// Local search: moves chains of operators and operators to other devices, and swaps the devices of
// two operators if no move helps, as long as this reduces the makespan.
class Improver {
 public:
  Improver(const PlacementProblem& problem, OperatorSchedule start, int64_t max_visits)
      : problem_(problem),
        best_(std::move(start)),
        tries_(max_visits / (std::ssize(problem.ops) + std::ssize(problem.edges) + 1)) {}

  OperatorSchedule Improve() {
    for (bool better = true; better && tries_ > 0;) {
      better = MoveChains();
      better = MoveEach() || better;
      if (!better) better = SwapEach();
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

  bool MoveChains() {
    bool better = false;
    for (const std::vector<int>& chain : ChainsOf(problem_)) {
      for (int d = 0; d < problem_.device_count() && tries_ > 0 && chain.size() > 1; ++d) {
        std::vector<int> device = best_.device;
        for (const int i : chain) device[i] = d;
        if (device != best_.device) better = Try(device) || better;
      }
    }
    return better;
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

OperatorSchedule ListSchedule(const PlacementProblem& problem, const std::vector<int>& packing,
                              int64_t max_visits) {
  OperatorSchedule best = EarliestFinish(problem, packing);
  if (problem.in_order) best = SchedulePlacement(problem, best.device);
  for (int d = 0; d < problem.device_count(); ++d) {
    const std::vector<int> alone(problem.ops.size(), d);
    if (!FitsMemory(problem, alone)) continue;
    OperatorSchedule schedule = SchedulePlacement(problem, alone);
    if (schedule.makespan < best.makespan) best = std::move(schedule);
  }
  return Improver(problem, std::move(best), max_visits).Improve();
}

}  // namespace cadre
