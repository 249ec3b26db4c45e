#include "coordinator/placement/placement_programme.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "coordinator/placement/integer_programme.h"
#include "coordinator/placement/packing.h"

namespace cadre {
namespace {

// The known makespan, in the programme's unit of time: far from every tolerance of the solver.
constexpr double kScale = 1000;
constexpr double kShorterBy = 1e-6;
// Rows of loads between heads and tails, per device.
constexpr size_t kMostLoads = 200;

// x_ij and x_ji of a pair; -1: that order cannot be.
struct Orders {
  int forward = -1;
  int backward = -1;
};

class Builder {
 public:
  Builder(const PlacementProblem& problem, const TimeWindows& windows, const Schedule& known)
      : problem_(problem),
        unit_(kScale / known.makespan),
        most_(kScale * (1 - kShorterBy)),
        reaches_(Reaches(problem)) {
    for (size_t i = 0; i < problem.ops.size(); ++i) {
      head_.push_back(windows.head[i] * unit_);
      after_.push_back((windows.tail[i] - problem.ops[i].least) * unit_);
      latest_finish_.push_back(most_ - after_.back());
    }
    makespan_ = programme_.AddVariable(LowerBound(problem, windows) * unit_, most_, 1);
    AddPlaces();
    AddMemory();
    AddStarts();
    AddEdges();
    AddPairs();
    AddLoads();
    AddLikeness();
  }

  IntegerProgramme& programme() { return programme_; }
  double unit() const { return unit_; }

  // Operators of a device in the order of their middles: no rounding of the solver's turns two
  // around, and one that takes no time stays before one that starts with it.
  Schedule ScheduleOf(const std::vector<double>& values) const {
    std::vector<int> device;
    std::vector<double> middle;
    for (size_t i = 0; i < problem_.ops.size(); ++i) {
      int best = 0;
      for (int d = 1; d < problem_.device_count(); ++d) {
        if (values[Index(placed_[i], d)] > values[Index(placed_[i], best)]) best = d;
      }
      device.push_back(best);
      middle.push_back(values[static_cast<size_t>(start_[i])] +
                       Duration(static_cast<int>(i), best) / 2);
    }
    return ScheduleByPriority(problem_, device, middle);
  }

 private:
  static size_t Index(int first, int device) { return static_cast<size_t>(first + device); }
  int Placed(int op, int device) const { return placed_[static_cast<size_t>(op)] + device; }
  double Duration(int op, int device) const { return problem_.Seconds(op, device) * unit_; }
  double Least(int op) const { return problem_.op(op).least * unit_; }
  double head(int op) const { return head_[static_cast<size_t>(op)]; }
  double latest_finish(int op) const { return latest_finish_[static_cast<size_t>(op)]; }

  // + factor * (what the operator takes).
  void AppendDuration(int op, double factor, IntegerProgramme::Terms& terms) const {
    for (int d = 0; d < problem_.device_count(); ++d) {
      if (Duration(op, d) != 0) terms.push_back({Placed(op, d), factor * Duration(op, d)});
    }
  }

  void AddPlaces() {
    for (int i = 0; i < problem_.size(); ++i) {
      IntegerProgramme::Terms one;
      for (int d = 0; d < problem_.device_count(); ++d) {
        const int placed = programme_.AddBinary();
        if (d == 0) placed_.push_back(placed);
        one.push_back({placed, 1});
        const bool late = head(i) + Duration(i, d) > latest_finish(i);
        const int64_t room = problem_.devices[static_cast<size_t>(d)].memory_bytes;
        if (late || (room > 0 && problem_.op(i).memory_bytes > room)) {
          programme_.AddRow({{placed, 1}}, '=', 0);
        }
      }
      programme_.AddRow(one, '=', 1);
    }
  }

  // Whole numbers: beside a sum that fits exactly, rounded ones would be cut off.
  void AddMemory() {
    const double part = MemoryPart(problem_);
    for (int d = 0; d < problem_.device_count(); ++d) {
      if (!problem_.limited(d)) continue;
      IntegerProgramme::Terms load;
      for (int i = 0; i < problem_.size(); ++i) {
        const double parts = std::ceil(static_cast<double>(problem_.op(i).memory_bytes) / part);
        if (parts > 0) load.push_back({Placed(i, d), parts});
      }
      const auto room = static_cast<double>(problem_.devices[static_cast<size_t>(d)].memory_bytes);
      if (!load.empty()) programme_.AddRow(load, '<', std::floor(room / part));
    }
  }

  void AddStarts() {
    for (int i = 0; i < problem_.size(); ++i) {
      const double last = std::max(head(i), latest_finish(i) - Least(i));
      start_.push_back(programme_.AddVariable(head(i), last));
      IntegerProgramme::Terms terms = {{makespan_, 1}, {start_.back(), -1}};
      AppendDuration(i, -1, terms);
      programme_.AddRow(terms, '>', after_[static_cast<size_t>(i)]);
    }
  }

  void AddEdges() {
    const int devices = problem_.device_count();
    for (int e = 0; e < static_cast<int>(problem_.edges.size()); ++e) {
      const PlacementProblem::Edge& edge = problem_.edge(e);
      IntegerProgramme::Terms later = {{start_[static_cast<size_t>(edge.to)], 1},
                                       {start_[static_cast<size_t>(edge.from)], -1}};
      AppendDuration(edge.from, -1, later);
      double most = 0;
      for (int n = 0; n < devices; ++n) {
        for (int m = 0; m < devices; ++m) {
          most = std::max(most, problem_.TransferSeconds(e, n, m));
        }
      }
      if (most > 0) AppendFlow(e, later);
      programme_.AddRow(later, '>', 0);
    }
  }

  // Which pair of devices the edge joins, and what that takes.
  void AppendFlow(int e, IntegerProgramme::Terms& later) {
    const PlacementProblem::Edge& edge = problem_.edge(e);
    const int devices = problem_.device_count();
    std::vector<IntegerProgramme::Terms> leaves(problem_.devices.size());
    std::vector<IntegerProgramme::Terms> arrives(problem_.devices.size());
    for (int n = 0; n < devices; ++n) {
      for (int m = 0; m < devices; ++m) {
        const double seconds = problem_.TransferSeconds(e, n, m) * unit_;
        const bool late =
            head(edge.from) + Duration(edge.from, n) + seconds + Duration(edge.to, m) >
            latest_finish(edge.to);
        const int joins = programme_.AddVariable(0, late ? 0 : 1);
        leaves[static_cast<size_t>(n)].push_back({joins, 1});
        arrives[static_cast<size_t>(m)].push_back({joins, 1});
        if (seconds > 0) later.push_back({joins, -seconds});
      }
    }
    for (int d = 0; d < devices; ++d) {
      leaves[static_cast<size_t>(d)].push_back({Placed(edge.from, d), -1});
      arrives[static_cast<size_t>(d)].push_back({Placed(edge.to, d), -1});
      programme_.AddRow(leaves[static_cast<size_t>(d)], '=', 0);
      programme_.AddRow(arrives[static_cast<size_t>(d)], '=', 0);
    }
  }

  bool CanPrecede(int i, int j) const { return head(i) + Least(i) + Least(j) <= latest_finish(j); }

  // One row that holds where `order` is 1: j starts when i is done.
  int AddOrder(int i, int j) {
    const int order = programme_.AddBinary();
    const double big = latest_finish(i) - head(j);
    IntegerProgramme::Terms terms = {
        {start_[static_cast<size_t>(j)], 1}, {start_[static_cast<size_t>(i)], -1}, {order, -big}};
    AppendDuration(i, -1, terms);
    programme_.AddRow(terms, '>', -big);
    return order;
  }

  void AddPairs() {
    for (int i = 0; i < problem_.size(); ++i) {
      for (int j = i + 1; j < problem_.size(); ++j) {
        const bool ordered = reaches_[static_cast<size_t>(i)][static_cast<size_t>(j)] ||
                             reaches_[static_cast<size_t>(j)][static_cast<size_t>(i)];
        const bool apart = latest_finish(i) <= head(j) || latest_finish(j) <= head(i);
        const bool instant = problem_.op(i).mean == 0 && problem_.op(j).mean == 0;
        if (!ordered && !apart && !instant) AddPair(i, j);
      }
    }
  }

  void AddPair(int i, int j) {
    const Orders orders{.forward = CanPrecede(i, j) ? AddOrder(i, j) : -1,
                        .backward = CanPrecede(j, i) ? AddOrder(j, i) : -1};
    IntegerProgramme::Terms either;
    if (orders.forward >= 0) either.push_back({orders.forward, 1});
    if (orders.backward >= 0) either.push_back({orders.backward, 1});
    if (either.size() == 2) programme_.AddRow(either, '<', 1);
    for (int d = 0; d < problem_.device_count(); ++d) {
      IntegerProgramme::Terms terms = either;
      terms.push_back({Placed(i, d), -1});
      terms.push_back({Placed(j, d), -1});
      programme_.AddRow(terms, '>', -1);
    }
  }

  // Operators that start no earlier than r and leave at least q behind them, on one device:
  // T >= r + their time + q.
  void AddLoads() {
    std::map<std::set<int>, double> loads;
    std::set<double> heads(head_.begin(), head_.end());
    std::set<double> tails(after_.begin(), after_.end());
    for (const double r : heads) {
      for (const double q : tails) {
        std::set<int> ops;
        for (int i = 0; i < problem_.size(); ++i) {
          if (head(i) >= r && after_[static_cast<size_t>(i)] >= q) ops.insert(i);
        }
        if (ops.size() < 2) continue;
        double& most = loads[ops];
        most = std::max(most, r + q);
        if (loads.size() >= kMostLoads) break;
      }
    }
    for (const auto& [ops, around] : loads) {
      for (int d = 0; d < problem_.device_count(); ++d) {
        IntegerProgramme::Terms terms = {{makespan_, 1}};
        for (const int i : ops) {
          if (Duration(i, d) > 0) terms.push_back({Placed(i, d), -Duration(i, d)});
        }
        if (terms.size() > 2) programme_.AddRow(terms, '>', around);
      }
    }
  }

  bool Alike(int a, int b) const {
    const auto& devices = problem_.devices;
    if (devices[static_cast<size_t>(a)].memory_bytes !=
        devices[static_cast<size_t>(b)].memory_bytes) {
      return false;
    }
    for (int c = 0; c < problem_.device_count(); ++c) {
      if (c != a && c != b && !problem_.routes.SameWays(a, b, c)) return false;
    }
    return std::all_of(problem_.ops.begin(), problem_.ops.end(), [&](const auto& op) {
      return op.seconds[static_cast<size_t>(a)] == op.seconds[static_cast<size_t>(b)];
    });
  }

  // Of two devices that are alike, the second has an operator only if one that the graph names
  // before it is on the first.
  void AddLikeness() {
    for (int b = 1; b < problem_.device_count(); ++b) {
      int a = b - 1;
      while (a >= 0 && !Alike(a, b)) --a;
      if (a < 0) continue;
      IntegerProgramme::Terms before;
      for (int i = 0; i < problem_.size(); ++i) {
        IntegerProgramme::Terms terms = before;
        terms.push_back({Placed(i, b), -1});
        programme_.AddRow(terms, '>', 0);
        before.push_back({Placed(i, a), 1});
      }
    }
  }

  const PlacementProblem& problem_;
  const double unit_;
  // Less than the known makespan.
  const double most_;
  const std::vector<std::vector<bool>> reaches_;
  // By operator: least start, least time after its end, and so its latest end.
  std::vector<double> head_;
  std::vector<double> after_;
  std::vector<double> latest_finish_;
  IntegerProgramme programme_;
  int makespan_ = 0;
  std::vector<int> placed_;
  std::vector<int> start_;
};

}  // namespace

ProgrammeAnswer SolvePlacement(const PlacementProblem& problem, const TimeWindows& windows,
                               const Schedule& known, double seconds) {
  Builder builder(problem, windows, known);
  const IntegerProgramme::Answer solved = builder.programme().Minimise({.seconds = seconds});
  ProgrammeAnswer answer{.nodes = solved.nodes};
  if (solved.outcome == IntegerProgramme::Outcome::kInfeasible) {
    answer.proven = true;
    answer.lower_bound = known.makespan * (1 - kShorterBy);
    return answer;
  }
  answer.lower_bound = std::max(0.0, solved.bound / builder.unit());
  if (solved.values.empty()) return answer;
  Schedule schedule = builder.ScheduleOf(solved.values);
  if (FitsMemory(problem, schedule.device) && schedule.makespan < known.makespan) {
    answer.schedule = std::move(schedule);
  }
  answer.proven = solved.outcome == IntegerProgramme::Outcome::kOptimal &&
                  answer.schedule.has_value() &&
                  answer.schedule->makespan <= answer.lower_bound * (1 + kShorterBy);
  return answer;
}

int64_t ProgrammeSize(const PlacementProblem& problem) {
  const int64_t n = problem.size();
  const int64_t devices = problem.device_count();
  return n * (n - 1) / 2 * devices + static_cast<int64_t>(problem.edges.size()) * devices * devices;
}

}  // namespace cadre
