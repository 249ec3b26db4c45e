#include "coordinator/placement/list_scheduling.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "coordinator/placement/packing.h"

namespace cadre {
namespace {

// A mean over all pairs of devices costs their square for every edge; so many tell as much.
constexpr int kMostRankDevices = 16;
// An improvement must be more than rounding.
constexpr double kBetter = 1 - 1e-9;

// What a device does, by start.
class Timeline {
 public:
  // The first time from `ready` on when the device is free for so long.
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

// Operators by rank, the highest first, each behind those whose tensors it takes.
std::vector<int> ByRank(const PlacementProblem& problem, const std::vector<double>& rank) {
  std::vector<int> sequence = problem.order;
  std::stable_sort(sequence.begin(), sequence.end(), [&](int a, int b) {
    return rank[static_cast<size_t>(a)] > rank[static_cast<size_t>(b)];
  });
  return sequence;
}

double MeanTransfer(const PlacementProblem& problem, int edge) {
  const int devices = problem.device_count();
  const int used = std::min(devices, kMostRankDevices);
  double sum = 0;
  for (int a = 0; a < used; ++a) {
    for (int b = 0; b < used; ++b) {
      sum += problem.TransferSeconds(edge, a * devices / used, b * devices / used);
    }
  }
  return sum / (used * used);
}

std::vector<double> MeanRanks(const PlacementProblem& problem) {
  std::vector<double> rank(problem.ops.size(), 0);
  for (auto it = problem.order.rbegin(); it != problem.order.rend(); ++it) {
    double behind = 0;
    for (const int e : problem.out[static_cast<size_t>(*it)]) {
      behind = std::max(behind,
                        MeanTransfer(problem, e) + rank[static_cast<size_t>(problem.edge(e).to)]);
    }
    rank[static_cast<size_t>(*it)] = problem.op(*it).mean + behind;
  }
  return rank;
}

std::vector<double> PlacedRanks(const PlacementProblem& problem, const std::vector<int>& device) {
  std::vector<double> rank(problem.ops.size(), 0);
  for (auto it = problem.order.rbegin(); it != problem.order.rend(); ++it) {
    const int on = device[static_cast<size_t>(*it)];
    double behind = 0;
    for (const int e : problem.out[static_cast<size_t>(*it)]) {
      const auto to = static_cast<size_t>(problem.edge(e).to);
      behind = std::max(behind, problem.TransferSeconds(e, on, device[to]) + rank[to]);
    }
    rank[static_cast<size_t>(*it)] = problem.Seconds(*it, on) + behind;
  }
  return rank;
}

// When an operator's tensors are there. Requires: those before it are scheduled.
double ReadyOn(const PlacementProblem& problem, const Schedule& schedule, int op, int device) {
  double ready = 0;
  for (const int e : problem.in[static_cast<size_t>(op)]) {
    const int from = problem.edge(e).from;
    const int at = schedule.device[static_cast<size_t>(from)];
    ready = std::max(ready, schedule.start[static_cast<size_t>(from)] + problem.Seconds(from, at) +
                                problem.TransferSeconds(e, at, device));
  }
  return ready;
}

void Put(const PlacementProblem& problem, int op, int device, double start, Schedule& schedule,
         std::vector<Timeline>& timelines) {
  const double finish = start + problem.Seconds(op, device);
  schedule.device[static_cast<size_t>(op)] = device;
  schedule.start[static_cast<size_t>(op)] = start;
  schedule.makespan = std::max(schedule.makespan, finish);
  timelines[static_cast<size_t>(device)].Take(start, finish);
}

Schedule Empty(const PlacementProblem& problem) {
  return {.device = std::vector<int>(problem.ops.size(), -1),
          .start = std::vector<double>(problem.ops.size(), 0)};
}

Schedule EarliestFinish(const PlacementProblem& problem, const std::vector<int>& packing) {
  Schedule schedule = Empty(problem);
  std::vector<Timeline> timelines(problem.devices.size());
  MemoryReserve reserve(problem, packing);
  for (const int i : ByRank(problem, MeanRanks(problem))) {
    int best = -1;
    double best_start = 0;
    double best_finish = std::numeric_limits<double>::infinity();
    for (int d = 0; d < problem.device_count(); ++d) {
      const double seconds = problem.Seconds(i, d);
      const double start = timelines[static_cast<size_t>(d)].EarliestStart(
          ReadyOn(problem, schedule, i, d), seconds);
      if (start + seconds >= best_finish || !reserve.Allows(i, d)) continue;
      best = d;
      best_start = start;
      best_finish = start + seconds;
    }
    reserve.Place(i, best);
    Put(problem, i, best, best_start, schedule, timelines);
  }
  return schedule;
}

// Moves operators to other devices, and swaps the devices of two, as long as that helps.
class Improver {
 public:
  Improver(const PlacementProblem& problem, Schedule start, const ListSchedulingOptions& options)
      : problem_(problem),
        best_(std::move(start)),
        tries_(options.most_work /
               static_cast<int64_t>(problem.ops.size() + problem.edges.size() + 1)) {}

  Schedule Improve() {
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
    Schedule schedule = SchedulePlacement(problem_, device);
    if (schedule.makespan >= best_.makespan * kBetter) return false;
    best_ = std::move(schedule);
    return true;
  }

  bool MoveEach() {
    bool better = false;
    for (int i = 0; i < problem_.size(); ++i) {
      for (int d = 0; d < problem_.device_count() && tries_ > 0; ++d) {
        std::vector<int> device = best_.device;
        if (device[static_cast<size_t>(i)] == d) continue;
        device[static_cast<size_t>(i)] = d;
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
  Schedule best_;
  int64_t tries_;
};

}  // namespace

Schedule SchedulePlacement(const PlacementProblem& problem, const std::vector<int>& device) {
  Schedule schedule = Empty(problem);
  std::vector<Timeline> timelines(problem.devices.size());
  for (const int i : ByRank(problem, PlacedRanks(problem, device))) {
    const int on = device[static_cast<size_t>(i)];
    const double start = timelines[static_cast<size_t>(on)].EarliestStart(
        ReadyOn(problem, schedule, i, on), problem.Seconds(i, on));
    Put(problem, i, on, start, schedule, timelines);
  }
  return schedule;
}

Schedule ListSchedule(const PlacementProblem& problem, const std::vector<int>& packing,
                      const ListSchedulingOptions& options) {
  Schedule best = EarliestFinish(problem, packing);
  for (int d = 0; d < problem.device_count(); ++d) {
    const std::vector<int> alone(problem.ops.size(), d);
    if (!FitsMemory(problem, alone)) continue;
    Schedule schedule = SchedulePlacement(problem, alone);
    if (schedule.makespan < best.makespan) best = std::move(schedule);
  }
  return Improver(problem, std::move(best), options).Improve();
}

}  // namespace cadre
